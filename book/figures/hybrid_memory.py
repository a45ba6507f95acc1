"""Draws hybrid-memory.svg: what the layers of the shipped hybrid store after 16, 64 and 256 tokens."""

from typing import Any, Final, cast

import mlx.core as mx
from book.figures.drawing import Drawing

from tiny_llm_lab import load_checkpoint
from tiny_llm_ref.models.array_ops import ArrayOps
from tiny_llm_ref.models.model import Qwen

TOKENS: Final = (16, 64, 256)
_NAMES: Final = {"linear_attention": "delta net", "full_attention": "attention"}
_ROLES: Final = {"linear_attention": "blue", "full_attention": "orange"}
_LEFT, _TOP, _LANE, _WIDTH = 150, 58, 56, 230


def stored() -> tuple[list[str], list[list[int]]]:
    """The kind of each layer, and the bytes that it stores after each number of TOKENS."""
    checkpoint = load_checkpoint("default-hybrid", dtype="float32")
    assert checkpoint.config.hybrid is not None
    model = Qwen(checkpoint.config, checkpoint.weights, ArrayOps())
    sizes = []
    for count in TOKENS:
        caches = model.create_kv_cache()
        model(mx.array([[index % 1000 + 3 for index in range(count)]]), 0, caches)
        sizes.append([_bytes(cache) for cache in caches])
    by_layer = [list(each) for each in zip(*sizes, strict=True)]
    return list(checkpoint.config.hybrid.mixers), by_layer


def draw() -> str:
    """The figure as SVG."""
    kinds, sizes = stored()
    largest = max(max(each) for each in sizes)
    drawing = Drawing(
        "What each layer of the shipped hybrid stores after 16, 64 and 256 tokens of one sequence"
    )
    drawing.text(12, 22, "What a layer stores of one sequence", bold=True)
    drawing.text(
        _LEFT, 44, f"after {', '.join(map(str, TOKENS[:-1]))} and {TOKENS[-1]} tokens", "grey", size=12
    )
    for layer, (kind, after) in enumerate(zip(kinds, sizes, strict=True)):
        top = _TOP + layer * _LANE
        drawing.text(12, top + 20, f"layer {layer}")
        drawing.text(12, top + 36, _NAMES[kind], _ROLES[kind], size=12)
        for place, size in enumerate(after):
            y = top + 4 + place * 15
            width = _WIDTH * size / largest
            drawing.box(_LEFT, y, width, 12, _ROLES[kind], strength=0.4 + 0.3 * place)
            drawing.text(_LEFT + width + 8, y + 10, f"{size / 1024:.0f} KiB", "grey", size=11)
    return drawing.svg()


def _bytes(cache: Any) -> int:
    """Of keys and values those of stored tokens, without the storage's spare room."""
    if hasattr(cache, "states"):
        return cast(int, cache.nbytes)
    return sum(part.nbytes for part in cache.fetch())
