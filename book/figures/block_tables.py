"""Draws book/src/figures/block-tables.svg: the block tables of three requests over one pool.

The tables are those that the reference's `BlockPool` gives to requests that come, grow and leave.
"""

from tiny_llm_ref.cache.block_pool import BlockPool

from .drawing import Drawing

NUM_BLOCKS, BLOCK_SIZE, COLUMNS = 16, 4, 4
_COLOURS = {"A": "blue", "C": "orange", "D": "green"}
_PLACE, _BLOCK_WIDTH, _BLOCK_HEIGHT = 22, 112, 48
_LEFT = 16

Request = tuple[list[int], int]  # blocks and tokens


def draw() -> str:
    """The figure as SVG."""
    requests = served()
    used = sum(tokens for _, tokens in requests.values())
    places = sum(len(table) for table, _ in requests.values()) * BLOCK_SIZE
    drawing = Drawing(
        f"A pool of {NUM_BLOCKS} blocks of {BLOCK_SIZE} tokens. Three requests hold blocks that are "
        f"scattered over the pool; of the {places} places of these blocks {places - used} are empty."
    )
    drawing.text(_LEFT, 24, f"The pool: {NUM_BLOCKS} blocks of {BLOCK_SIZE} places", bold=True)
    _pool(drawing, requests)
    top = 44 + NUM_BLOCKS // COLUMNS * _BLOCK_HEIGHT
    drawing.text(_LEFT, top + 12, "The block tables", bold=True)
    for lane, (name, (table, tokens)) in enumerate(requests.items()):
        _table(drawing, top + 22 + 26 * lane, name, table, tokens)
    summary = f"{used} tokens in {places} places: {places - used} empty, all in last blocks"
    drawing.text(_LEFT, top + 22 + 26 * len(requests) + 18, summary, "grey", size=12)
    return drawing.svg()


def served() -> dict[str, Request]:
    """A, B and C arrive, B leaves, D arrives, and A grows."""
    pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
    a, b, c = (pool.allocate(-(-tokens // BLOCK_SIZE)) for tokens in (10, 6, 13))
    pool.free(b)
    d = pool.allocate(3)
    a += pool.allocate(1)
    pool.check([a, c, d])
    return {"A": (a, 14), "C": (c, 13), "D": (d, 9)}


def _pool(drawing: Drawing, requests: dict[str, Request]) -> None:
    for block in range(NUM_BLOCKS):
        left = _LEFT + block % COLUMNS * _BLOCK_WIDTH
        top = 36 + block // COLUMNS * _BLOCK_HEIGHT
        drawing.text(left, top + 11, str(block), "grey", size=12)
        for place in range(BLOCK_SIZE):
            at = (left + place * _PLACE, top + 15, _PLACE - 2, 22)
            held = [name for name, (table, _) in requests.items() if block in table]
            drawing.box(*at, "faint", strength=0.4)
            if held:
                _stored(drawing, at, held[0], *requests[held[0]], block, place)


def _stored(
    drawing: Drawing,
    at: tuple[float, float, float, float],
    name: str,
    table: list[int],
    tokens: int,
    block: int,
    place: int,
) -> None:
    token = table.index(block) * BLOCK_SIZE + place
    if token < tokens:
        drawing.box(*at, _COLOURS[name], strength=0.85, label=str(token))
    else:
        drawing.box(*at, _COLOURS[name], is_outline=True)


def _table(drawing: Drawing, top: float, name: str, table: list[int], tokens: int) -> None:
    drawing.text(_LEFT, top + 16, f"{name}, {tokens} tokens", _COLOURS[name])
    for i, block in enumerate(table):
        drawing.box(_LEFT + 100 + 38 * i, top, 34, 22, _COLOURS[name], strength=0.85, label=str(block))
    empty = len(table) * BLOCK_SIZE - tokens
    drawing.text(_LEFT + 100 + 38 * len(table) + 8, top + 16, f"{empty} empty", "grey", size=12)
