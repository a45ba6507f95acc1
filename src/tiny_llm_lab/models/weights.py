"""The `*.safetensors` of a checkpoint folder -> named weights, checked against the architecture."""

import json
import struct
from pathlib import Path

import mlx.core as mx

from tiny_llm_lab.models.config import Packing, Quantization, read_json
from tiny_llm_lab.types import ModelConfig, QuantizedWeights, UserError, Weight

DAMAGED = "the file is damaged, download it again"


def read_weights(
    folder: Path, config: ModelConfig, quantization: Quantization | None, dtype: mx.Dtype | None
) -> dict[str, Weight]:
    """Every weight that the architecture names, in `dtype` (None = as stored), evaluated."""
    stored: dict[str, mx.array] = {}
    for shard in _shards(folder):
        stored |= _read_shard(shard)
    weights: dict[str, Weight] = {}
    for name, shape in expected_shapes(config).items():
        packing = quantization.of(name.removesuffix(".weight")) if quantization else None
        if packing is not None and name.removesuffix("weight") + "scales" in stored:
            weights[name] = _quantized(folder, stored, name, shape, packing, dtype)
        else:
            weights[name] = _cast(_take(folder, stored, name, shape), dtype)
        # One tensor at a time: the stored and the cast copy of all of them would not fit side by side.
        mx.eval(vars(weights[name]) if isinstance(weights[name], QuantizedWeights) else weights[name])
    return weights


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and logical shape of every parameter."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size = config.num_attention_heads * config.head_dim
    kv_size = config.num_key_value_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for i in range(config.num_hidden_layers):
        layer, attention = f"model.layers.{i}.", f"model.layers.{i}.self_attn."
        shapes[layer + "input_layernorm.weight"] = (hidden,)
        shapes[layer + "post_attention_layernorm.weight"] = (hidden,)
        for part, size in (("q", q_size), ("k", kv_size), ("v", kv_size)):
            shapes[f"{attention}{part}_proj.weight"] = (size, hidden)
            if config.qkv_bias:
                shapes[f"{attention}{part}_proj.bias"] = (size,)
        shapes[attention + "o_proj.weight"] = (hidden, q_size)
        if config.qk_norm:
            shapes |= {f"{attention}{part}_norm.weight": (config.head_dim,) for part in "qk"}
        shapes |= {f"{layer}mlp.{part}_proj.weight": (inner, hidden) for part in ("gate", "up")}
        shapes[layer + "mlp.down_proj.weight"] = (hidden, inner)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def _shards(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
        shards = [folder / name for name in names]
    else:
        shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise UserError(f"{folder} holds no *.safetensors: give a folder in Hugging Face layout")
    for shard in shards:
        if not shard.exists():
            raise UserError(f"{shard} is missing but {index.name} names it: download the checkpoint again")
    return shards


def _read_shard(path: Path) -> dict[str, mx.array]:
    _check_header(path)
    try:
        arrays = mx.load(str(path))
    except (RuntimeError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({str(error).splitlines()[0]}): {DAMAGED}") from None
    assert isinstance(arrays, dict)
    return arrays


def _check_header(path: Path) -> None:
    """Read the sizes a safetensors file declares: MLX maps the data lazily and would fail much later."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > size:
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise UserError(f"{path} is no safetensors file ({error}): {DAMAGED}") from None
    if size != 8 + length + max(ends, default=0):
        raise UserError(
            f"{path} has {size} bytes, its header says {8 + length + max(ends, default=0)}: {DAMAGED}"
        )


def _take(folder: Path, stored: dict[str, mx.array], name: str, shape: tuple[int, ...]) -> mx.array:
    if name not in stored:
        raise UserError(f"{folder} lacks the tensor {name}: the checkpoint does not match its config.json")
    if stored[name].shape != shape:
        raise UserError(
            f"{folder}: {name} has shape {list(stored[name].shape)}, config.json asks for {list(shape)}: "
            "the checkpoint does not match its config.json"
        )
    return stored.pop(name)


def _quantized(
    folder: Path,
    stored: dict[str, mx.array],
    name: str,
    shape: tuple[int, ...],
    packing: Packing,
    dtype: mx.Dtype | None,
) -> QuantizedWeights:
    rows, columns = shape
    groups = (rows, columns // packing.group_size)
    stem = name.removesuffix("weight")
    return QuantizedWeights(
        weight=_take(folder, stored, name, (rows, columns * packing.bits // 32)),
        scales=_cast(_take(folder, stored, stem + "scales", groups), dtype),
        biases=_cast(_take(folder, stored, stem + "biases", groups), dtype),
        group_size=packing.group_size,
        bits=packing.bits,
    )


def _cast(array: mx.array, dtype: mx.Dtype | None) -> mx.array:
    return array if dtype is None else array.astype(dtype)
