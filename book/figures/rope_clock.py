"""Draws rope-clock.svg: the two ways to pair the dimensions of a head, and how far each pair has turned.

Eight dimensions and base 10,000 give four hands, each ten times as slow as the one before.
"""

from typing import Final

import mlx.core as mx
from book.figures.drawing import Drawing

from tiny_llm_ref.layers.positional_encoding import RoPE

DIMS, POSITIONS = 8, (1, 10, 100)
RADIUS, LEFT, COLUMN, ROW = 30, 96, 96, 76
BOX, BOXES, COLOURS = 38, 150, ("blue", "orange", "green", "purple")
PAIRING: Final = {"halves (Qwen)": False, "neighbours (traditional)": True}


def partners(*, is_traditional: bool) -> list[int]:
    """Which dimension each dimension is turned with: where a 1 leaks to."""
    rope, partner = RoPE(DIMS, 2, traditional=is_traditional), []
    for dim, one in enumerate(mx.eye(DIMS)):
        turned = rope(one.reshape(1, 1, 1, DIMS), [1]).flatten().tolist()
        partner.append(next(i for i, x in enumerate(turned) if i != dim and x != 0))
    return partner


def draw() -> str:
    """The figure as SVG."""
    drawing = Drawing(f"Pairs of {DIMS} dimensions, and the angles of {DIMS // 2} pairs at three positions")
    drawing.text(12, 24, "Which two dimensions make a pair", bold=True)
    for row, (name, is_traditional) in enumerate(PAIRING.items()):
        _pairs(drawing, 38 + row * 38, name, partners(is_traditional=is_traditional))
    top = 38 + 2 * 38 + 34
    drawing.text(12, top, "How far each pair has turned", bold=True)
    rope = RoPE(DIMS, max(POSITIONS) + 1)
    cos, sin = (table.tolist() for table in rope.tables(max(POSITIONS) + 1))
    for pair, period in enumerate(rope.periods.tolist()):
        middle = LEFT + COLUMN * pair + RADIUS + 8
        drawing.text(middle, top + 24, f"pair {pair}", COLOURS[pair], anchor="middle")
        drawing.text(middle, top + 40, f"{1 / period:.3g} rad/token", "grey", anchor="middle", size=12)
        for row, position in enumerate(POSITIONS):
            y = top + 54 + RADIUS + row * ROW
            _hand(drawing, middle, y, cos[position][pair], sin[position][pair], COLOURS[pair])
    for row, position in enumerate(POSITIONS):
        drawing.text(12, top + 58 + RADIUS + row * ROW, f"position {position}")
    return drawing.svg()


def _pairs(drawing: Drawing, y: float, name: str, partner: list[int]) -> None:
    drawing.text(12, y + 19, name)
    colour = 0
    for dim, other in enumerate(partner):
        if dim < other:
            for i in (dim, other):
                x = BOXES + 18 + i * BOX
                drawing.box(x, y, BOX - 4, 28, COLOURS[colour], label=str(i))
            colour += 1


def _hand(drawing: Drawing, x: float, y: float, cos: float, sin: float, role: str) -> None:
    drawing.ring(x, y, RADIUS)
    drawing.line([(x, y), (x + RADIUS, y)], "faint")
    tip = (x + round((RADIUS - 3) * cos, 1), y - round((RADIUS - 3) * sin, 1))
    drawing.line([(x, y), tip], role, width=2.5)
    drawing.dot(x, y, 3, role)
