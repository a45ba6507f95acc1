"""The architectures of the short names, and how `random:NAME,layers=2,bits=4` changes them."""

from dataclasses import asdict, dataclass, fields, replace
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


def _with_experts(shape: Shape, count: int, active: int, inner: int) -> Shape:
    return replace(shape, experts=count, active=active, expert_inner=inner)


def _sharing(shape: Shape, inner: int) -> Shape:
    return replace(shape, shared_inner=inner, norm_topk=0)


def _wide(shape: Shape) -> Shape:
    return replace(shape, vocab=248320, positions=262144)


def _hybrid(shape: Shape, heads: tuple[int, int], dims: tuple[int, int] = (128, 128)) -> Shape:
    """With gated delta nets of so many key and value heads, of so many numbers each."""
    return replace(
        shape,
        interval=4,
        rotary=shape.head_dim // 4,
        key_heads=heads[0],
        value_heads=heads[1],
        key_dim=dims[0],
        value_dim=dims[1],
        shared_inner=shape.expert_inner,
    )


def _with_tower(shape: Shape, layers: int, width: int, inner: int, deep: int = 0) -> Shape:
    return replace(shape, tower=layers, tower_width=width, tower_inner=inner, deep=deep)


def _shrunk(shape: Shape) -> Shape:
    return replace(shape, vocab=320, positions=512, bits=32)


_MOE = Shape("qwen1.5-moe-a2.7b", "qwen2_moe", 2048, 24, 16, 16, 128, 5632, tied=0, positions=8192)
_SMALL_MOE = Shape("qwen2-moe-shrunk", "qwen2_moe", 64, 3, 4, 2, 16, 192, tied=0)
_VL = Shape("qwen3-vl-2b", "qwen3_vl", 2048, 28, 16, 8, 128, 6144, tied=1, positions=262144)
# The small ones as on their model cards, the others as in transformers' defaults.
_SPARSE = _wide(Shape("qwen3.5-35b-a3b", "qwen3_5_moe", 2048, 40, 16, 2, 256, 512, tied=0))
_NEXT = Shape("qwen3-next-80b-a3b", "qwen3_next", 2048, 48, 16, 2, 256, 5632, tied=0, positions=262144)
_HYBRIDS = (
    _hybrid(_wide(Shape("qwen3.5-0.8b", "qwen3_5", 1024, 24, 8, 2, 256, 3584, tied=1)), (16, 16)),
    _hybrid(_wide(Shape("qwen3.5-4b", "qwen3_5", 2560, 32, 16, 4, 256, 9216, tied=1)), (16, 32)),
    _hybrid(_wide(Shape("qwen3.5-9b", "qwen3_5", 4096, 32, 16, 4, 256, 12288, tied=0)), (16, 32)),
    _hybrid(_wide(Shape("qwen3.5-27b", "qwen3_5", 5120, 64, 24, 4, 256, 17408, tied=0)), (16, 48)),
    _hybrid(_with_experts(_SPARSE, 256, 8, 512), (16, 32)),
    _hybrid(_with_experts(_NEXT, 512, 10, 512), (16, 32)),
)
_SMALL_HYBRIDS = (
    Shape("qwen3.5-shrunk", "qwen3_5", 64, 5, 4, 2, 32, 192, tied=1),
    _with_experts(Shape("qwen3.5-moe-shrunk", "qwen3_5_moe", 64, 5, 4, 2, 32, 128, tied=0), 8, 3, 128),
    _with_experts(Shape("qwen3-next-shrunk", "qwen3_next", 64, 5, 4, 2, 32, 192, tied=0), 8, 3, 128),
)
_SMALL_SEEING = Shape("qwen3.5-vl-shrunk", "qwen3_5", 64, 5, 4, 2, 32, 192, tied=1)


def _seeing(shape: Shape, deep: int = 0) -> Shape:
    small = replace(shape, tower_heads=4, tower_patch=8, tower_side=8)
    return _with_tower(small, 3, 64, 96, deep)


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
        _sharing(_with_experts(_MOE, 60, 4, 1408), 5632),
        *_HYBRIDS,
        _with_tower(_VL, 24, 1024, 4096, deep=3),
        Shape("llama-3.1-8b", "llama", 4096, 32, 32, 8, 128, 14336, tied=0, vocab=128256, positions=131072),
        Shape("llama-3.2-1b", "llama", 2048, 16, 32, 8, 64, 8192, tied=1, vocab=128256, positions=131072),
        # Shrunk for tests: every feature of the family, in a megabyte. Sizes are all different, and in
        # Qwen3 the heads together are wider than the hidden size, so that no two can be mistaken.
        _shrunk(Shape("qwen3-shrunk", "qwen3", 64, 3, 4, 2, 32, 192, tied=1)),
        _shrunk(Shape("llama-shrunk", "llama", 64, 3, 4, 2, 32, 192, tied=0)),
        _shrunk(Shape("qwen2.5-shrunk", "qwen2", 64, 2, 4, 2, 16, 192, tied=0)),
        _shrunk(
            _with_experts(Shape("qwen3-moe-shrunk", "qwen3_moe", 64, 3, 4, 2, 32, 192, tied=0), 8, 3, 256)
        ),
        _sharing(_shrunk(_with_experts(_SMALL_MOE, 8, 3, 256)), 128),
        *(replace(_shrunk(_hybrid(shape, (2, 4), (16, 24))), interval=2) for shape in _SMALL_HYBRIDS),
        _seeing(_shrunk(Shape("qwen3-vl-shrunk", "qwen3_vl", 64, 3, 4, 2, 32, 192, tied=1)), deep=2),
        _seeing(replace(_shrunk(_hybrid(_SMALL_SEEING, (2, 4), (16, 24))), interval=2)),
    )
}
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
