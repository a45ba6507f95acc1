"""A GGUF file of a model's shape with random weights, written to the cache folder once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.peers.random_file import find_or_write
from tiny_llm_lab.runtime.models.weights.layout import parameter_shapes
from tiny_llm_lab.types import HybridConfig, ModelConfig, UserError

BLOCK: Final = 32  # numbers that share a scale in Q4_0 and Q8_0
_STD: Final = 0.02
# What stays float32 besides vectors: llama.cpp has no packed convolutions, and does not round routers.
_PLAIN: Final = ("conv1d.weight", "mlp.gate.weight", "shared_expert_gate.weight")
# Our names, and checkpoints', that gguf knows by others.
_RENAMED: Final = {"mlp.switch_mlp.": "mlp.experts.", "linear_attn.dt_bias": "linear_attn.dt_proj.bias"}

Array = np.ndarray[Any, Any]


def find_or_make(config: ModelConfig, quantization: str) -> Path:
    """The file of `config` with its matrices as `quantization`: "Q4_0", "Q8_0" or "BF16"."""
    widths = {shape[-1] for name, shape in parameter_shapes(config) if not _is_plain(name, shape)}
    if quantization != "BF16" and any(width % BLOCK for width in widths):
        raise UserError(
            f"llama.cpp packs {quantization} in blocks of {BLOCK}, which do not divide the model's widths"
        )
    name = f"{quantization}.gguf"
    return find_or_write("gguf", config, name, lambda path: _write(path, config, quantization))


def _write(path: Path, config: ModelConfig, quantization: str) -> None:
    import gguf

    kind = gguf.GGMLQuantizationType[quantization]
    draw = np.random.default_rng(0)
    made: dict[tuple[int, ...], Array] = {}
    with gguf_writer(path, config, quantization) as add:
        for name, shape in parameter_shapes(config):
            if _is_plain(name, shape):
                add(name, _plain(draw, name, shape))
                continue
            # Layers may hold equal numbers, and experts: they are stored, and read, apart.
            if shape[-2:] not in made:
                numbers = draw.standard_normal(shape[-2:], dtype=np.float32) * _STD
                made[shape[-2:]] = gguf.quants.quantize(numbers, kind)
            rows = made[shape[-2:]]
            add(name, np.broadcast_to(rows, (*shape[:-2], *rows.shape)))


def _is_plain(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) == 1 or name.endswith(_PLAIN)


def _plain(draw: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    """Ones, but for routers and convolutions, and for decays: llama.cpp has -exp(A_log)."""
    if len(shape) == 1:
        return np.full(shape, -1 if name.endswith("A_log") else 1, np.float32)
    return (draw.standard_normal(shape, dtype=np.float32) * _STD).squeeze()


@contextmanager
def gguf_writer(path: Path, config: ModelConfig, quantization: str) -> Iterator[Callable[[str, Array], None]]:
    """Gives a function that adds a parameter, float32 or a matrix's packed bytes; then writes the file.

    Raises UserError if gguf has no such architecture, or no name for a parameter.
    """
    import gguf

    arch = config.model_type.replace("_", "")
    if arch.upper() not in gguf.MODEL_ARCH.__members__:
        raise UserError(f"gguf has no architecture {arch}: llama.cpp cannot run {config.model_type}")
    writer = gguf.GGUFWriter(path, arch)
    for name, value in _settings(config).items():
        getattr(writer, f"add_{name}")(value)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{quantization}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config.num_hidden_layers)
    kind = gguf.GGMLQuantizationType[quantization]

    def add(name: str, numbers: Array) -> None:
        for ours, theirs in _RENAMED.items():
            name = name.replace(ours, theirs)
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if not gguf_name:
            raise UserError(f"llama.cpp's {arch} has no {name}: it cannot run this model")
        writer.add_tensor(gguf_name, numbers, raw_dtype=kind if numbers.dtype == np.uint8 else None)

    yield add
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _settings(config: ModelConfig) -> dict[str, object]:
    settings: dict[str, object] = {
        "name": "random",
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "head_count": config.num_attention_heads,
        "head_count_kv": config.num_key_value_heads,
        "key_length": config.head_dim,
        "value_length": config.head_dim,
        "rope_freq_base": config.rope_theta,
        "layer_norm_rms_eps": config.rms_norm_eps,
        "vocab_size": config.vocab_size,
        "tokenizer_model": "none",  # tokens go in and out as numbers
    }
    if config.num_experts:
        settings |= {
            "expert_count": config.num_experts,
            "expert_used_count": config.num_experts_per_tok,
            "expert_feed_forward_length": config.moe_intermediate_size,
            "expert_shared_feed_forward_length": config.shared_expert_intermediate_size,
        }
    return settings | (_hybrid_settings(config.hybrid) if config.hybrid else {})


def _hybrid_settings(hybrid: HybridConfig) -> dict[str, object]:
    sizes, pairs = hybrid.delta_net, hybrid.rotary_dims // 2
    return {
        "full_attention_interval": hybrid.mixers.index("full_attention") + 1,
        "rope_dimension_count": hybrid.rotary_dims,
        "rope_dimension_sections": [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0],
        "ssm_conv_kernel": sizes.conv_kernel,
        "ssm_state_size": sizes.key_head_dim,
        "ssm_group_count": sizes.num_key_heads,
        "ssm_time_step_rank": sizes.num_value_heads,
        "ssm_inner_size": sizes.value_dim,
    }
