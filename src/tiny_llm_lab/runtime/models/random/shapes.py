"""The architectures of the short names, and how `random:NAME,layers=2,bits=4` changes them."""

import tomllib
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from tiny_llm_lab.runtime.models.config.model_config import EXPERT_TYPES, HYBRID_TYPES, SHARED_EXPERT_TYPES
from tiny_llm_lab.types import UserError, require

TOKENIZER_SIZE = 259  # bytes and three special tokens, the smallest vocabulary of a shape
VISION_TOKENS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")  # the ids after them, with a tower
IM_END, END_OF_TEXT = 258, 256  # the ids of the tokens that end a text
CONV_KERNEL = 4  # of every hybrid
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
    interval: int = 0  # of a hybrid: every so many layers have attention, the others a gated delta net
    rotary: int = 0  # dimensions of a head that are rotated; 0: all
    key_heads: int = 0  # of a gated delta net
    value_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    shared_inner: int = 0  # of the expert that all tokens use
    mtp: int = 0  # 1: with the layer that drafts; 2: that layer alone
    tower: int = 0  # layers of the tower that reads pictures
    tower_width: int = 1152
    tower_inner: int = 4304
    tower_heads: int = 16
    tower_patch: int = 16  # pixels, squared
    tower_side: int = 48  # learned places, squared
    deep: int = 0  # layers of the tower whose rows are added after layers of the model

    @property
    def is_hybrid(self) -> bool:
        return self.model_type in HYBRID_TYPES

    def __str__(self) -> str:
        """The shortest text that parses to this shape, however you asked for it."""
        standard = asdict(SHAPES[self.name])
        changes = [f"{key}={value}" for key, value in asdict(self).items() if standard[key] != value]
        return ",".join([self.name, *changes])


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
SHAPES = {name: Shape(name, **sizes) for name, sizes in _TABLE.items()}
# So that a typing error is refused before it costs memory; the size of all is compared with the disk.
_LARGEST_SIZE = 2**17
_MOST = {"vocab": 2**20, "positions": 2**27, "seed": 2**63, "layers": 1000, "experts": 1024}
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
        if option not in OPTIONS or not (value.isascii() and value.isdecimal()):
            raise UserError(
                f"random:{text}: {change!r} is not OPTION=NUMBER: choose options of {', '.join(OPTIONS)}, "
                "as in random:qwen3-0.6b,layers=2,bits=4"
            )
        most = _MOST.get(option, _LARGEST_SIZE)
        if len(value) > len(str(most)) or int(value) > most:
            raise UserError(f"random:{text[:80]}: {option} must be at most {most}")
        values[option] = int(value)
    shape = replace(SHAPES[base], **values)
    _check(shape, text)
    return shape


def _tokenizer_size(shape: Shape) -> int:
    return TOKENIZER_SIZE + (len(VISION_TOKENS) if shape.tower else 0)


def _check(shape: Shape, text: str) -> None:
    is_dense = shape.bits in DTYPES
    widths = (shape.hidden, shape.inner, shape.heads * shape.head_dim)
    may_have_experts = shape.model_type in EXPERT_TYPES
    expert_widths = (shape.expert_inner, shape.shared_inner) if may_have_experts else (0, 0)
    delta_width = shape.value_heads * shape.value_dim
    checks = {
        "every size must be 1 or more": min(shape.layers, shape.heads, shape.kv_heads, *widths) >= 1,
        "positions must be 1 or more": shape.positions >= 1,
        "tied must be 0 or 1": shape.tied in (0, 1),
        f"vocab must be {_tokenizer_size(shape)} or more": shape.vocab >= _tokenizer_size(shape),
        "bits must be 2, 3, 4, 5, 6, 8, 16 or 32": is_dense or shape.bits in (2, 3, 4, 5, 6, 8),
        "group must be 32, 64 or 128": shape.group in (32, 64, 128),
        "norm_topk must be 0 or 1": shape.norm_topk in (0, 1),
        "sparse_step must be 1 or more": shape.sparse_step >= 1,
    }
    has_experts = 1 <= shape.active <= shape.experts and shape.expert_inner >= 1
    has_none = shape.experts == shape.active == shape.expert_inner == 0
    checks |= {
        "experts, active, expert_inner need a model with experts, and active 1 to experts": has_experts
        if may_have_experts
        else has_none,
        "kv_heads must divide heads": shape.heads % max(1, shape.kv_heads) == 0,
        "head_dim must be even": shape.head_dim % 2 == 0,
        # mlx-lm ignores the head_dim of a qwen2 config.json.
        "heads x head_dim must be hidden in qwen2": widths[2] == shape.hidden
        or shape.model_type not in ("qwen2", "qwen2_moe"),
        f"hidden, inner and heads x head_dim must be multiples of group={shape.group}": is_dense
        or not any(width % max(1, shape.group) for width in (*widths, *expert_widths, delta_width)),
    }
    require(checks | _hybrid_checks(shape) | _tower_checks(shape), f"random:{text}: ")


def _tower_checks(shape: Shape) -> dict[str, bool]:
    sizes = (shape.tower_width, shape.tower_inner, shape.tower_heads, shape.tower_patch, shape.tower_side)
    may_have_tower = shape.model_type in ("qwen3_vl", "qwen3_5", "qwen3_5_moe")
    return {
        "every size of a tower must be 1 or more": min(sizes) >= 1,
        "tower_width must be a multiple of 4 x tower_heads": shape.tower_width
        % (4 * max(1, shape.tower_heads))
        == 0,
        "a tower is for qwen3_vl and qwen3_5 models, without mtp": not shape.tower
        or (may_have_tower and not shape.mtp),
        "deep must be below tower and layers, in qwen3_vl alone": shape.deep
        < (min(shape.tower, shape.layers) if shape.tower and shape.model_type == "qwen3_vl" else 1),
    }


def _hybrid_checks(shape: Shape) -> dict[str, bool]:
    delta_net = (shape.key_heads, shape.value_heads, shape.key_dim, shape.value_dim)
    sizes = (*delta_net, shape.interval, shape.rotary)
    are_for_hybrids = min(sizes) >= 1 if shape.is_hybrid else not any(sizes)
    return {
        "interval, rotary, key_heads, value_heads, key_dim and value_dim are for hybrids": are_for_hybrids,
        "mtp must be 0, or 1 or 2 for a hybrid": shape.mtp <= 2 and (shape.is_hybrid or not shape.mtp),
        "interval must be at most layers: one must have attention": shape.interval <= shape.layers,
        "norm_topk must be 1 in qwen3_5_moe": shape.norm_topk == 1 or shape.model_type != "qwen3_5_moe",
        "key_heads must divide value_heads": shape.value_heads % max(1, shape.key_heads) == 0,
        "rotary must be even, and at most head_dim": shape.rotary % 2 == 0 and shape.rotary <= shape.head_dim,
        "qwen2_moe and hybrids with experts need shared_inner, and no others": (shape.shared_inner > 0)
        == (shape.model_type in SHARED_EXPERT_TYPES),
    }
