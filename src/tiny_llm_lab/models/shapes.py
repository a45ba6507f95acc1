"""The architectures behind the short names, and how `random:NAME,layers=2,bits=4` bends them."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from tiny_llm_lab.types import UserError

TOKENIZER_SIZE = 259  # bytes and three special tokens: the smallest vocabulary a shape can have


@dataclass(frozen=True)
class Shape:
    """What a random checkpoint looks like; the field names are the options of its name."""

    model_type: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    tied: int
    vocab: int = 151936
    positions: int = 40960
    bits: int = 16
    group: int = 64
    seed: int = 0


SHAPES = {
    "qwen3-0.6b": Shape("qwen3", 1024, 28, 16, 8, 128, 3072, tied=1),
    "qwen3-1.7b": Shape("qwen3", 2048, 28, 16, 8, 128, 6144, tied=1),
    "qwen3-4b": Shape("qwen3", 2560, 36, 32, 8, 128, 9728, tied=1),
    "qwen3-8b": Shape("qwen3", 4096, 36, 32, 8, 128, 12288, tied=0),
    "qwen2.5-0.5b": Shape("qwen2", 896, 24, 14, 2, 64, 4864, tied=1, positions=32768),
    "qwen2.5-7b": Shape("qwen2", 3584, 28, 28, 4, 128, 18944, tied=0, vocab=152064, positions=32768),
}
OPTIONS = [name for name in asdict(SHAPES["qwen3-0.6b"]) if name != "model_type"]


def parse_shape(text: str) -> Shape:
    """ "qwen3-0.6b,layers=2,bits=4" -> Shape; UserError for anything that is not a shape."""
    base, *changes = text.split(",")
    if base not in SHAPES:
        raise UserError(f"random:{base} is unknown: choose one of {', '.join(SHAPES)}")
    values: dict[str, Any] = {}
    for change in changes:
        option, _, value = change.partition("=")
        if option not in OPTIONS or not value.isdigit():
            raise UserError(f"random:{text}: {change!r} is no option=number; options: {', '.join(OPTIONS)}")
        values[option] = int(value)
    shape = replace(SHAPES[base], **values)
    _check(shape, text)
    return shape


def _check(shape: Shape, text: str) -> None:
    checks = {
        "bits must be 4, 8 or 16": shape.bits in (4, 8, 16),
        "group must be 32, 64 or 128": shape.group in (32, 64, 128),
        "hidden, inner and heads x head_dim must be multiples of group": shape.bits == 16
        or not any(n % shape.group for n in (shape.hidden, shape.inner, shape.heads * shape.head_dim)),
        "kv_heads must divide heads": shape.kv_heads > 0 and shape.heads % shape.kv_heads == 0,
        "head_dim must be even": shape.head_dim % 2 == 0,
        "qwen2 has heads x head_dim = hidden": shape.model_type == "qwen3"
        or shape.heads * shape.head_dim == shape.hidden,
        f"vocab must be {TOKENIZER_SIZE} or more": shape.vocab >= TOKENIZER_SIZE,
        "every size must be 1 or more": min(shape.hidden, shape.layers, shape.inner, shape.positions) > 0,
    }
    for complaint, holds in checks.items():
        if not holds:
            raise UserError(f"random:{text}: {complaint}")


def config_json(shape: Shape) -> dict[str, Any]:
    """The `config.json` of a shape, as mlx-lm and transformers read it."""
    is_qwen2 = shape.model_type == "qwen2"
    config: dict[str, Any] = {
        "architectures": ["Qwen2ForCausalLM" if is_qwen2 else "Qwen3ForCausalLM"],
        "model_type": shape.model_type,
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.inner,
        "hidden_act": "silu",
        "attention_bias": is_qwen2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "max_position_embeddings": shape.positions,
        "tie_word_embeddings": bool(shape.tied),
        "use_sliding_window": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": 258,
    }
    if shape.bits != 16:
        packing = {"group_size": shape.group, "bits": shape.bits}
        config |= {"quantization": packing, "quantization_config": packing}
    return config
