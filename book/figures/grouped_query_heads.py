"""Draws grouped-query-heads.svg: which query head reads which kv head, for three numbers of kv heads.

The arrows are what the reference does: each kv head has a value of its own, which names it in the output.
"""

from typing import Final

import mlx.core as mx
from book.figures.drawing import Drawing

from tiny_llm_ref.layers.attention import scaled_dot_product_attention_grouped

HEADS: Final = 4
KINDS: Final = ((4, "multi-head: G = 4"), (2, "grouped: G = 2, the default model"), (1, "multi-query: G = 1"))
COLOURS: Final = ("blue", "orange", "green", "purple")
LEFT, COLUMN, BOX, PANEL = 92, 92, 76, 138


def readers(groups: int) -> list[int]:
    """The kv head that each query head reads."""
    query, key = mx.zeros((1, HEADS, 1, 2)), mx.zeros((1, groups, 1, 2))
    # Every kv head's value is its own number, so the output of a query head names the one it read.
    value = mx.broadcast_to(mx.arange(groups, dtype=mx.float32).reshape(1, groups, 1, 1), key.shape)
    out = scaled_dot_product_attention_grouped(query, key, value)
    return [round(number) for number in out[0, :, 0, 0].tolist()]


def draw() -> str:
    """The figure as SVG."""
    drawing = Drawing("Four query heads read four, two or one kv heads")
    for panel, (groups, name) in enumerate(KINDS):
        top = panel * PANEL
        drawing.text(12, top + 24, name, bold=True)
        drawing.text(12, top + 56, "query heads")
        drawing.text(12, top + 118, "kv heads")
        reads = readers(groups)
        middles = [
            sum(_middle(head) for head in range(HEADS) if reads[head] == kv) / reads.count(kv)
            for kv in range(groups)
        ]
        for head, kv in enumerate(reads):
            drawing.box(_middle(head) - BOX / 2, top + 38, BOX, 28, COLOURS[kv], label=str(head))
            drawing.line([(_middle(head), top + 67), (middles[kv], top + 98)], COLOURS[kv], has_arrow=True)
        for kv, middle in enumerate(middles):
            drawing.box(middle - BOX / 2, top + 100, BOX, 28, COLOURS[kv], label=str(kv))
    return drawing.svg()


def _middle(head: int) -> float:
    return LEFT + COLUMN * head + COLUMN / 2
