"""A GGUF file of a model's shape with random weights, written to the cache folder once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.peers.random_file import find_or_write
from tiny_llm_lab.runtime.models.weights.layout import parameter_shapes
from tiny_llm_lab.types import ModelConfig, UserError

_BLOCK: Final = 32  # numbers that share a scale in Q4_0 and Q8_0
_STD: Final = 0.02

Array = np.ndarray[Any, Any]


def find_or_make(config: ModelConfig, quantization: str) -> Path:
    """The file of `config` with its matrices as `quantization`: "Q4_0", "Q8_0" or "BF16"."""
    widths = {shape[-1] for _, shape in parameter_shapes(config) if len(shape) == 2}
    if quantization != "BF16" and any(width % _BLOCK for width in widths):
        raise UserError(
            f"llama.cpp packs {quantization} in blocks of {_BLOCK}, which do not divide the model's widths"
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
            if len(shape) == 1:
                add(name, np.ones(shape, np.float32))
                continue
            # Layers may hold equal numbers: they are stored, and read, apart.
            if shape not in made:
                made[shape] = gguf.quants.quantize(draw.standard_normal(shape, dtype=np.float32) * _STD, kind)
            add(name, made[shape])


@contextmanager
def gguf_writer(path: Path, config: ModelConfig, quantization: str) -> Iterator[Callable[[str, Array], None]]:
    """Gives a function that adds a parameter, [E] float32 or a matrix's packed rows; then writes the file."""
    import gguf

    writer = gguf.GGUFWriter(path, config.model_type)
    for name, value in _settings(config).items():
        getattr(writer, f"add_{name}")(value)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{quantization}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[config.model_type.upper()], config.num_hidden_layers)
    kind = gguf.GGMLQuantizationType[quantization]

    def add(name: str, numbers: Array) -> None:
        raw = kind if numbers.ndim == 2 else None
        gguf_name = str(names.get_name(name, try_suffixes=(".weight", ".bias")))
        writer.add_tensor(gguf_name, numbers, raw_dtype=raw)

    yield add
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _settings(config: ModelConfig) -> dict[str, object]:
    return {
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
