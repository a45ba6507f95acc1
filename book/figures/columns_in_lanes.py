"""Draws book/src/figures/columns-in-lanes.svg: the words of a matrix in rows, and in a block."""

from typing import Final

from .drawing import Drawing

LANES: Final = 4  # as with NEON
WORDS: Final = 4
_COLOURS: Final = ("blue", "green", "orange", "purple")
_CELL: Final = 40


def draw() -> str:
    """The figure as SVG."""
    drawing = Drawing(
        "Four rows of a matrix, four words each. In rows, the words of row 0 come first. In a block, word 0 "
        "of each row comes first: one vector, which meets one number of x, and a lane is a column."
    )
    drawing.text(16, 24, "in rows", bold=True)
    drawing.text(262, 24, "in a block, or a panel", bold=True)
    for i in range(LANES):
        drawing.text(16, 53 + i * 34, f"row {i}", "grey", size=12)
        for k in range(WORDS):
            place = (60 + k * _CELL, 36 + i * 34)
            drawing.box(*place, _CELL - 6, 26, _COLOURS[i], strength=0.3, label=f"{i}.{k}")
    for k in range(WORDS):
        drawing.box(262, 36 + k * 34, 32, 26, "grey", strength=0.3, label=f"x{k}")
        drawing.line([(296, 49 + k * 34), (310, 49 + k * 34)], has_arrow=True)
        for i in range(LANES):
            place = (314 + i * _CELL, 36 + k * 34)
            drawing.box(*place, _CELL - 6, 26, _COLOURS[i], strength=0.3, label=f"{i}.{k}")
    below = 36 + WORDS * 34
    for i in range(LANES):
        drawing.box(314 + i * _CELL, below + 8, _CELL - 6, 26, _COLOURS[i], strength=0.85, label=f"y{i}")
    drawing.text(262, below + 26, "sums", "grey", size=12)
    drawing.text(16, below + 26, "row.word: memory goes line by line", "grey", size=12)
    return drawing.svg()
