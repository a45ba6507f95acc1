"""Draws book/src/figures/register-tiles.svg: loads and products of a tile of one row and of one of five."""

from .drawing import Drawing

VECTORS = 2
HEIGHTS = (1, 5)
_CELL, _PANEL = 56, 240


def draw() -> str:
    """The figure as SVG."""
    drawing = Drawing(
        "A tile of 1 row of x by 2 vectors of columns loads 3 vectors for 2 products. A tile of 5 by 2 loads 7 "
        "for 10: every number of x meets two vectors of weights, every weight meets five numbers of x."
    )
    for panel, rows in enumerate(HEIGHTS):
        _tile(drawing, 16 + panel * _PANEL, rows)
    return drawing.svg()


def _tile(drawing: Drawing, left: float, rows: int) -> None:
    drawing.text(left, 24, f"{rows} × {VECTORS}", bold=True)
    for n in range(VECTORS):
        drawing.box(left + 60 + n * _CELL, 36, _CELL - 6, 24, "orange", strength=0.85, label=f"w{n}")
    for m in range(rows):
        top = 68 + m * 32
        drawing.box(left, top, _CELL - 6, 24, "blue", strength=0.85, label=f"x{m}")
        for n in range(VECTORS):
            drawing.box(left + 60 + n * _CELL, top, _CELL - 6, 24, "green", strength=0.3, label="sum")
    loads, products = rows + VECTORS, rows * VECTORS
    said = f"{loads} loads, {products} products, {products / loads:.2g} a load"
    drawing.text(left, 68 + max(HEIGHTS) * 32 + 14, said, "grey", size=12)
