"""A GGUF file of a model's shape with random weights, written to the cache folder once."""

import hashlib
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from tiny_llm_lab.bench.child import reply
from tiny_llm_lab.bench.peers import PeerSpec
from tiny_llm_lab.cache import cache_folder
from tiny_llm_lab.models.parameters import EMBEDDING, parameter_shapes
from tiny_llm_lab.types import ModelConfig, UserError

# Part of every file's name: raise it when the same shape would get other contents.
_VERSION: Final = "v1"
_BLOCK: Final = 32  # numbers that share a scale in Q4_0
_STD: Final = 0.02
_TOP: Final = {
    f"{EMBEDDING}.weight": "token_embd",
    "model.norm.weight": "output_norm",
    "lm_head.weight": "output",
}
_IN_LAYER: Final = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_name(name: str) -> str:
    """The name in llama.cpp of a parameter in Hugging Face's spelling."""
    if name in _TOP:
        return f"{_TOP[name]}.weight"
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    module, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{_IN_LAYER[module]}.{kind}"


def find_or_make(config: ModelConfig, quantization: str) -> Path:
    """The file of `config` with its matrices as `quantization`, "Q4_0" or "BF16"."""
    widths = {shape[-1] for _, shape in parameter_shapes(config) if len(shape) == 2}
    if quantization == "Q4_0" and any(width % _BLOCK for width in widths):
        raise UserError(
            f"llama.cpp packs Q4_0 in blocks of {_BLOCK}, which do not divide this model's widths"
        )
    text = json.dumps(asdict(config), sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = cache_folder() / "gguf" / _VERSION / f"{config.model_type}-{key}-{quantization}.gguf"
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            unfinished = Path(folder) / path.name
            _write(unfinished, config, quantization)
            unfinished.rename(path)
        os.sync()  # otherwise it would be written to disk while the first run is being timed
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}): set TINY_LLM_CACHE") from None
    return path


def _write(path: Path, config: ModelConfig, quantization: str) -> None:
    import gguf

    kind = gguf.GGMLQuantizationType[quantization]
    writer = gguf.GGUFWriter(path, config.model_type)
    _write_settings(writer, config)
    writer.add_file_type(
        {"Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0}.get(quantization, gguf.LlamaFileType.MOSTLY_BF16)
    )
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    draw = np.random.default_rng(0)
    made: dict[tuple[int, ...], np.ndarray[Any, Any]] = {}
    for name, shape in parameter_shapes(config):
        if len(shape) == 1:
            writer.add_tensor(gguf_name(name), np.ones(shape, np.float32))
            continue
        # Layers may hold equal numbers: they are stored, and read, apart.
        if shape not in made:
            made[shape] = gguf.quants.quantize(draw.standard_normal(shape, dtype=np.float32) * _STD, kind)
        writer.add_tensor(gguf_name(name), made[shape], raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_settings(writer: Any, config: ModelConfig) -> None:
    writer.add_name("random")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")  # tokens go in and out as numbers


def _prepare(text: str) -> dict[str, Any]:
    spec = PeerSpec.from_json(text)
    return {"bytes": find_or_make(spec.config, spec.variant.split()[0]).stat().st_size}


if __name__ == "__main__":
    sys.exit(reply(_prepare))
