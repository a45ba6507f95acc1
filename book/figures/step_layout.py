"""Draws book/src/figures/step-layout.svg: where the reference stores and finds the rows of one step."""

from typing import Final

from book.figures.drawing import Drawing

from tiny_llm_lab.types.computing.paged import Slice
from tiny_llm_ref import StepLayout

BLOCK_SIZE: Final = 4
NUM_BLOCKS: Final = 8
REQUESTS: Final = {"a": ([7, 2], 5, 1), "b": ([1, 5], 4, 3)}  # blocks, computed tokens, new tokens
_ROLES: Final = {"a": "blue", "b": "orange"}
_LEFT, _CELL, _BLOCK = 16, 25, 112


def layout() -> StepLayout:
    """The layout of the step: a decode of a, then a chunk of b."""
    return StepLayout.of(BLOCK_SIZE, [Slice(*each) for each in REQUESTS.values()])


def draw() -> str:
    """The figure as SVG."""
    at = layout()
    d = Drawing("A pool of eight blocks of four places, and the four rows of a step with their slots.")
    d.text(12, 22, "The pool after the step: 8 blocks of 4 places", bold=True)
    for block in range(NUM_BLOCKS):
        x, y = _LEFT + block % 4 * (_BLOCK + 2), 36 + block // 4 * 58
        d.text(x, y + 12, f"block {block}", "grey", size=12)
        for place in range(BLOCK_SIZE):
            d.box(x + place * _CELL, y + 18, _CELL - 3, 24, "faint", strength=0.5)
    for r, (name, (blocks, computed, new)) in enumerate(REQUESTS.items()):
        for token in range(computed + new):
            block, place = blocks[token // BLOCK_SIZE], token % BLOCK_SIZE
            x, y = _LEFT + block % 4 * (_BLOCK + 2) + place * _CELL, 54 + block // 4 * 58
            strength = 1.0 if token >= computed else 0.3
            d.box(x, y, _CELL - 3, 24, _ROLES[name], strength=strength, label=str(token))
        table = ", ".join(str(int(block)) for block in at.block_tables[r].tolist())  # type: ignore[union-attr]
        d.text(
            _LEFT + 228 * r, 172, f"{name}: blocks {table}, {at.lengths[r]} tokens", _ROLES[name], bold=True
        )
    _rows(d, at, 204)
    d.text(12, 310, "dark: new in this step · slot = block × 4 + place", "grey", size=12)
    return d.svg()


def _rows(d: Drawing, at: StepLayout, top: float) -> None:
    owners = "".join(name * new for name, (_, _, new) in REQUESTS.items())
    slots = [int(slot) for slot in at.slots.tolist()]  # type: ignore[union-attr,arg-type]
    sees = [f"0–{position}" for position in at.positions]
    values = {"row": range(len(owners)), "position": at.positions, "slot": slots, "attends to": sees}
    for line, (label, found) in enumerate(values.items()):
        y = top + line * 24 + 4
        d.text(_LEFT, y, label, "grey")
        for row, value in enumerate(found):
            role = _ROLES[owners[row]] if line == 0 else "ink"
            d.text(
                150 + row * 84,
                y,
                f"{value} ({owners[row]})" if line == 0 else str(value),
                role,
                anchor="middle",
            )
