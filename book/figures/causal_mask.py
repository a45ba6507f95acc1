"""Draws causal-mask.svg: one rule as a square, as a rectangle, and with its triangle on the wrong side."""

import mlx.core as mx
from book.figures.drawing import Drawing

from tiny_llm_ref.layers.attention import causal_mask

NEW, STORED = 3, 8
CELL, LEFT = 28, 136


def draw() -> str:
    """The figure as SVG."""
    drawing = Drawing(f"Causal masks of {STORED} tokens at once and of the last {NEW} of {STORED}")
    whole = _visible(STORED, STORED)
    drawing.text(12, 24, f"All {STORED} tokens are new: L = S = {STORED}", bold=True)
    _mask(drawing, 34, whole, 0, "blue")
    top = 34 + STORED * CELL + 44
    drawing.text(12, top - 14, f"The last {NEW} are new: L = {NEW}, S = {STORED}", bold=True)
    _mask(drawing, top, _visible(NEW, STORED), STORED - NEW, "green")
    below = top + NEW * CELL + 44
    drawing.text(12, below - 14, "A mistake: the triangle begins at the left", bold=True)
    _mask(drawing, below, whole[:NEW], STORED - NEW, "red")
    return drawing.svg()


def _visible(new: int, stored: int) -> list[list[float]]:
    rows = causal_mask(new, stored, mx.float32).tolist()
    return [[float(number == 0) for number in row] for row in rows]


def _mask(drawing: Drawing, top: float, rows: list[list[float]], first: int, role: str) -> None:
    for i, row in enumerate(rows):
        drawing.text(LEFT - 10, top + i * CELL + 18, f"query at {first + i}", anchor="end")
        for j, seen in enumerate(row):
            at = (LEFT + j * CELL, top + i * CELL, CELL - 3, CELL - 3)
            drawing.box(
                *at, role if seen else "faint", strength=0.85 if seen else 0.35, label=str(j) if seen else ""
            )
