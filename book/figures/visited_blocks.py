"""Draws book/src/figures/visited-blocks.svg: which blocks of keys a causal kernel looks at.

What a row sees is the reference's `causal_mask`; an item of rows visits the blocks up to its last row's view.
"""

import mlx.core as mx

from tiny_llm_ref.layers.attention import causal_mask

from .drawing import Drawing

STORED, NEW, BLOCK, ITEM = 20, 12, 4, 4
_LEFT, _TOP, _CELL = 66, 54, 20


def draw() -> str:
    """The figure as SVG."""
    seen = visible()
    visited = [ends_of(seen, row) for row in range(NEW)]
    num_seen, num_visited = sum(map(sum, seen)), sum(visited)
    drawing = Drawing(
        f"{NEW} new tokens after {STORED - NEW} stored ones. Of {NEW * STORED} scores {num_seen} are "
        f"needed; items of {ITEM} rows that stop at the block of their last row compute {num_visited}."
    )
    drawing.text(
        16, 24, f"{NEW} new tokens, {STORED} stored, blocks of {BLOCK}, items of {ITEM} rows", bold=True
    )
    for block in range(STORED // BLOCK):
        left = _LEFT + block * BLOCK * _CELL
        drawing.text(left + BLOCK * _CELL / 2, 44, f"block {block}", "grey", anchor="middle", size=12)
    for row in range(NEW):
        top = _TOP + row * _CELL
        if row % ITEM == 0:
            drawing.text(16, top + 14, f"item {row // ITEM}", "grey", size=12)
        for column in range(STORED):
            at = (_LEFT + column * _CELL, top, _CELL - 2, _CELL - 2)
            if seen[row][column]:
                drawing.box(*at, "blue", strength=0.8)
            elif column < visited[row]:
                drawing.box(*at, "orange", strength=0.5)
            else:
                drawing.box(*at, "faint", strength=0.5)
    _legend(drawing, num_seen, num_visited)
    return drawing.svg()


def visible() -> list[list[bool]]:
    """For each new token which stored ones it may see."""
    mask = causal_mask(NEW, STORED, mx.float32)
    return [[number == 0 for number in row] for row in mask.tolist()]


def ends_of(seen: list[list[bool]], row: int) -> int:
    """Behind which stored token the item of `row` stops: the end of the block that its last row needs."""
    last = min(NEW, (row // ITEM + 1) * ITEM) - 1
    return -(-sum(seen[last]) // BLOCK) * BLOCK


def _legend(drawing: Drawing, num_seen: int, num_visited: int) -> None:
    top = _TOP + NEW * _CELL + 10
    for i, (role, strength, text) in enumerate(
        (
            ("blue", 0.8, f"seen: {num_seen} of {NEW * STORED} scores"),
            ("orange", 0.5, f"computed and hidden: {num_visited - num_seen}"),
            ("faint", 0.5, f"never touched: {NEW * STORED - num_visited}"),
        )
    ):
        drawing.box(_LEFT, top + 20 * i, 16, 16, role, strength=strength)
        drawing.text(_LEFT + 24, top + 20 * i + 13, text, size=12)
