"""The architectures of the short names, and how `random:NAME,layers=2,bits=4` changes them."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from tiny_llm_lab.types import UserError

TOKENIZER_SIZE = 259  # bytes and three special tokens, the smallest vocabulary of a shape
IM_END, END_OF_TEXT = 258, 256  # the ids of the tokens that end a text
DTYPES = {16: "bfloat16", 32: "float32"}  # of the shapes that are not quantized


@dataclass(frozen=True)
class Shape:
    """The shape of a random checkpoint; all fields except the first two are options in its name."""

    name: str
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
    bits: int = 16  # 16 = bfloat16, 32 = float32, otherwise MLX's packing
    group: int = 64
    seed: int = 0
    experts: int = 0  # 0: no mixture of experts
    active: int = 0  # experts of one token
    expert_inner: int = 0
    sparse_step: int = 1
    norm_topk: int = 1

    def __str__(self) -> str:
        """The shortest text that parses to this shape, however you asked for it."""
        standard = asdict(SHAPES[self.name])
        changes = [f"{key}={value}" for key, value in asdict(self).items() if standard[key] != value]
        return ",".join([self.name, *changes])


def _with_experts(shape: Shape, count: int, active: int, inner: int) -> Shape:
    return replace(shape, experts=count, active=active, expert_inner=inner)


def _shrunk(shape: Shape) -> Shape:
    return replace(shape, vocab=320, positions=512, bits=32)


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("qwen3-0.6b", "qwen3", 1024, 28, 16, 8, 128, 3072, tied=1),
        Shape("qwen3-1.7b", "qwen3", 2048, 28, 16, 8, 128, 6144, tied=1),
        Shape("qwen3-4b", "qwen3", 2560, 36, 32, 8, 128, 9728, tied=1),
        Shape("qwen3-8b", "qwen3", 4096, 36, 32, 8, 128, 12288, tied=0),
        Shape("qwen3-14b", "qwen3", 5120, 40, 40, 8, 128, 17408, tied=0),
        Shape("qwen3-32b", "qwen3", 5120, 64, 64, 8, 128, 25600, tied=0),
        Shape("qwen2.5-0.5b", "qwen2", 896, 24, 14, 2, 64, 4864, tied=1, positions=32768),
        Shape("qwen2.5-7b", "qwen2", 3584, 28, 28, 4, 128, 18944, tied=0, vocab=152064, positions=32768),
        _with_experts(Shape("qwen3-30b-a3b", "qwen3_moe", 2048, 48, 32, 4, 128, 6144, tied=0), 128, 8, 768),
        # Shrunk for tests: every feature of the family, in a megabyte. Sizes are all different, and in
        # Qwen3 the heads together are wider than the hidden size, so that no two can be mistaken.
        _shrunk(Shape("qwen3-shrunk", "qwen3", 64, 3, 4, 2, 32, 192, tied=1)),
        _shrunk(Shape("qwen2.5-shrunk", "qwen2", 64, 2, 4, 2, 16, 192, tied=0)),
        _shrunk(
            _with_experts(Shape("qwen3-moe-shrunk", "qwen3_moe", 64, 3, 4, 2, 32, 192, tied=0), 8, 3, 256)
        ),
    )
}
OPTIONS = [field.name for field in fields(Shape) if field.name not in ("name", "model_type")]


def parse_shape(text: str) -> Shape:
    """ "qwen3-0.6b,layers=2,bits=4" -> Shape; "-4bit" after the name is short for ",bits=4".

    Raises UserError for anything that is not a shape.
    """
    base, *changes = text.split(",")
    values: dict[str, Any] = {"bits": 4} if base.endswith("-4bit") else {}
    base = base.removesuffix("-4bit")
    if base not in SHAPES:
        raise UserError(f"random:{text}: unknown model {base!r}: choose one of {', '.join(SHAPES)}")
    for change in changes:
        option, _, value = change.partition("=")
        if option not in OPTIONS or not (value.isascii() and value.isdigit()):
            raise UserError(
                f"random:{text}: {change!r} is not OPTION=NUMBER: choose options of {', '.join(OPTIONS)}, "
                "as in random:qwen3-0.6b,layers=2,bits=4"
            )
        values[option] = int(value)
    shape = replace(SHAPES[base], **values)
    _check(shape, text)
    return shape


def _check(shape: Shape, text: str) -> None:
    is_dense = shape.bits in DTYPES
    widths = (shape.hidden, shape.inner, shape.heads * shape.head_dim)
    expert_width = shape.expert_inner if shape.model_type == "qwen3_moe" else 0
    checks = {
        "every size must be 1 or more": min(shape.layers, shape.heads, shape.kv_heads, *widths) >= 1,
        "positions must be 1 or more": shape.positions >= 1,
        "tied must be 0 or 1": shape.tied in (0, 1),
        f"vocab must be {TOKENIZER_SIZE} or more": shape.vocab >= TOKENIZER_SIZE,
        "bits must be 2, 3, 4, 5, 6, 8, 16 or 32": is_dense or shape.bits in (2, 3, 4, 5, 6, 8),
        "group must be 32, 64 or 128": shape.group in (32, 64, 128),
        "norm_topk must be 0 or 1": shape.norm_topk in (0, 1),
        "sparse_step must be 1 or more": shape.sparse_step >= 1,
    }
    has_experts = 1 <= shape.active <= shape.experts and shape.expert_inner >= 1
    has_none = shape.experts == shape.active == shape.expert_inner == 0
    checks |= {
        "experts, active and expert_inner need a qwen3_moe model, with active from 1 to experts": has_experts
        if shape.model_type == "qwen3_moe"
        else has_none,
        "kv_heads must divide heads": shape.heads % max(1, shape.kv_heads) == 0,
        "head_dim must be even": shape.head_dim % 2 == 0,
        # mlx-lm ignores the head_dim of a qwen2 config.json.
        "heads x head_dim must be hidden in qwen2": shape.model_type != "qwen2" or widths[2] == shape.hidden,
        f"hidden, inner and heads x head_dim must be multiples of group={shape.group}": is_dense
        or not any(width % max(1, shape.group) for width in (*widths, expert_width)),
    }
    for complaint, holds in checks.items():
        if not holds:
            raise UserError(f"random:{text}: {complaint}")


def config_json(shape: Shape) -> dict[str, Any]:
    """The `config.json` of a shape, as mlx-lm and transformers read it."""
    is_qwen2 = shape.model_type == "qwen2"
    architecture = {"qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe"}[shape.model_type]
    config: dict[str, Any] = {
        "architectures": [f"{architecture}ForCausalLM"],
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
        "torch_dtype": DTYPES.get(shape.bits, "bfloat16"),
        "eos_token_id": IM_END,
        "pad_token_id": END_OF_TEXT,
    }
    if shape.experts:
        config |= {
            "num_experts": shape.experts,
            "num_experts_per_tok": shape.active,
            "moe_intermediate_size": shape.expert_inner,
            "norm_topk_prob": bool(shape.norm_topk),
            "decoder_sparse_step": shape.sparse_step,
            "mlp_only_layers": [],
        }
    if shape.bits not in DTYPES:
        packing = {"group_size": shape.group, "bits": shape.bits, "mode": "affine"}
        config |= {"quantization": packing, "quantization_config": packing}
    return config
