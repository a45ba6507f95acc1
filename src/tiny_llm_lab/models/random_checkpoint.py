"""Checkpoints with random weights: the exact shape of a real model, without a download."""

import json
import os
import tempfile
from pathlib import Path

import mlx.core as mx

from tiny_llm_lab.models.config import read_config
from tiny_llm_lab.models.shapes import Shape, config_json, parse_shape
from tiny_llm_lab.models.weights import expected_shapes

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def find_or_make(text: str) -> Path:
    """The folder of `random:text`, written to the cache on first use.

    The same text gives the same weights. Set TINY_LLM_CACHE to keep the folders elsewhere.
    """
    shape = parse_shape(text)
    target = cache_folder() / "random" / text
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=target.parent))
        write_checkpoint(shape, unfinished)
        # Whoever finishes first wins; a rename onto a folder that is not empty fails.
        try:
            unfinished.rename(target)
        except OSError:
            if not target.exists():
                raise
    return target


def cache_folder() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("TINY_LLM_CACHE") or base / "tiny-llm")


def write_checkpoint(shape: Shape, folder: Path) -> None:
    """Write config, weights and tokenizer of `shape` in Hugging Face layout."""
    (folder / "config.json").write_text(json.dumps(config_json(shape), indent=2))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [258, 256]}))
    _write_weights(shape, folder)
    _write_tokenizer(shape, folder)


def _write_weights(shape: Shape, folder: Path) -> None:
    shapes = expected_shapes(read_config(folder / "config.json")[0])
    shards: dict[str, list[str]] = {}
    for name in shapes:
        # A file per layer: no more than one layer is in memory at a time.
        part = name.split(".")[2] if name.startswith("model.layers.") else "rest"
        shards.setdefault(f"model-{part}.safetensors", []).append(name)
    weight_map: dict[str, str] = {}
    key = mx.random.key(shape.seed)
    for file, names in shards.items():
        tensors: dict[str, mx.array] = {}
        for name in names:
            key, draw = mx.random.split(key)
            tensors |= _tensors(shape, name, shapes[name], draw)
        weight_map |= dict.fromkeys(tensors, file)
        mx.save_safetensors(str(folder / file), tensors, {"format": "pt"})
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _tensors(shape: Shape, name: str, size: tuple[int, ...], key: mx.array) -> dict[str, mx.array]:
    """One parameter, as one tensor or as the three of MLX's packing."""
    noise = mx.random.normal(size, key=key)
    if len(size) == 1:
        # Norms near 1 and biases near 0, yet none of them neutral: a test must notice a missing one.
        centre = 1.0 if name.endswith("norm.weight") else 0.0
        return {name: (centre + 0.1 * noise).astype(mx.bfloat16)}
    matrix = (noise * size[1] ** -0.5).astype(mx.bfloat16)
    if shape.bits == 16:
        return {name: matrix}
    packed, scales, biases = mx.quantize(matrix, group_size=shape.group, bits=shape.bits)
    stem = name.removesuffix("weight")
    return {name: packed, stem + "scales": scales, stem + "biases": biases}


def _write_tokenizer(shape: Shape, folder: Path) -> None:
    """Every byte is a token, then three special ones, then fillers: each id the model emits has a text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fillers = [f"<filler {i}>" for i in range(len(alphabet) + len(SPECIAL), shape.vocab)]
    vocab = {token: i for i, token in enumerate([*alphabet, *SPECIAL, *fillers])}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[0],
        "additional_special_tokens": list(SPECIAL),
        "model_max_length": shape.positions,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
