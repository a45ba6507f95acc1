"""Draws book/src/figures/register-tiles.svg: loads and products of a tile of one row and of one of three."""

from .drawing import Drawing

COLUMNS = 4
_CELL, _PANEL = 40, 240


def draw() -> str:
    """The figure as SVG."""
    drawing = Drawing(
        "A tile of 1 row of x by 4 rows of the matrix loads 5 vectors for 4 products. A tile of 3 by 4 loads "
        "7 for 12: every vector of x meets four weights, every weight meets three vectors of x."
    )
    for panel, rows in enumerate((1, 3)):
        _tile(drawing, 16 + panel * _PANEL, rows)
    return drawing.svg()


def _tile(drawing: Drawing, left: float, rows: int) -> None:
    drawing.text(left, 24, f"{rows} × {COLUMNS}", bold=True)
    for n in range(COLUMNS):
        drawing.box(left + 44 + n * _CELL, 36, _CELL - 6, 24, "orange", strength=0.85, label=f"w{n}")
    for m in range(rows):
        top = 68 + m * 32
        drawing.box(left, top, _CELL - 6, 24, "blue", strength=0.85, label=f"x{m}")
        for n in range(COLUMNS):
            drawing.box(left + 44 + n * _CELL, top, _CELL - 6, 24, "green", strength=0.3, label="sum")
    loads, products = rows + COLUMNS, rows * COLUMNS
    said = f"{loads} loads, {products} products, {products / loads:.2g} a load"
    drawing.text(left, 68 + 3 * 32 + 14, said, "grey", size=12)
