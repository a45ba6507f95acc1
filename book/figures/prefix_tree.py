"""Draws book/src/figures/prefix-tree.svg: four prompts, the blocks that they share, and who holds them.

Words stand for tokens. The prompts come one after the other and stay; blocks and holders are those of the
reference's `PrefixMatch` and `BlockPool`.
"""

from dataclasses import dataclass

from tiny_llm_ref.cache.block_pool import BlockPool
from tiny_llm_ref.cache.prefix_cache import PrefixCache
from tiny_llm_ref.cache.prefix_match import PrefixMatch

from .drawing import Drawing

BLOCK_SIZE = 4
PROMPTS = {
    "A": "You are a pirate . Answer in rhyme . Who are you ?",
    "B": "You are a pirate . Answer in rhyme . Where is the gold now ?",
    "C": "You are a pirate . Answer in French . Who are you today ?",
    "D": "You are a doctor . Answer in rhyme . Who are you ?",
}
_ROLES = ("blue", "green", "purple")
_LEFT, _TOP, _LANE, _COLUMN, _SHOWN = 40, 52, 46, 146, 3


@dataclass(frozen=True)
class Served:
    """A prompt's words, its blocks in order, and the tokens that it found."""

    words: list[str]
    blocks: list[int]
    num_found: int


def draw() -> str:
    """The figure as SVG."""
    pool = BlockPool(32, BLOCK_SIZE)
    served = prompts_in(pool)
    total = sum(len(each.words) for each in served)
    found = sum(each.num_found for each in served)
    drawing = Drawing(
        f"A tree of blocks: A, B and C share their first block, A and B their second one; D differs in its "
        f"first block and shares nothing, although later words are the same. Of {total} tokens "
        f"{found} are found."
    )
    for column in range(_SHOWN):
        title = f"words {column * BLOCK_SIZE + 1} to {(column + 1) * BLOCK_SIZE}"
        drawing.text(_LEFT + column * _COLUMN + 4, 40, title, "grey", size=12)
    for lane, name in enumerate(PROMPTS):
        drawing.text(14, _TOP + lane * _LANE + 26, name, bold=True)
    for column in range(_SHOWN):
        _column(drawing, pool, served, column)
    note = "What follows of each prompt lies in a block of its own, not drawn."
    drawing.text(_LEFT + 4, _TOP + len(PROMPTS) * _LANE + 16, note, "grey", size=12)
    summary = f"{total} tokens, {found} found in the cache, {total - found} computed."
    drawing.text(_LEFT + 4, _TOP + len(PROMPTS) * _LANE + 34, summary, "grey", size=12)
    return drawing.svg()


def prompts_in(pool: BlockPool) -> list[Served]:
    """Every prompt takes what is cached, computes the rest and registers its full blocks."""
    cache = PrefixCache(pool)
    numbers: dict[str, int] = {}
    served = []
    for prompt in PROMPTS.values():
        words = prompt.split()
        tokens = [numbers.setdefault(word, len(numbers)) for word in words]
        match = PrefixMatch(cache, tokens)
        blocks = match.acquire()
        num_found = len(blocks) * BLOCK_SIZE
        blocks += pool.allocate(-(-len(tokens) // BLOCK_SIZE) - len(blocks))
        for i in range(match.num_blocks, len(tokens) // BLOCK_SIZE):
            match.register(tokens[i * BLOCK_SIZE : (i + 1) * BLOCK_SIZE], blocks[i])
        served.append(Served(words, blocks, num_found))
    pool.check(each.blocks for each in served)
    return served


def _column(drawing: Drawing, pool: BlockPool, served: list[Served], column: int) -> None:
    """The blocks at one place of the prompts; a shared one is as high as the lanes of its holders."""
    left = _LEFT + column * _COLUMN
    for block in dict.fromkeys(each.blocks[column] for each in served):
        lanes = [lane for lane, each in enumerate(served) if each.blocks[column] == block]
        top, height = _TOP + lanes[0] * _LANE, len(lanes) * _LANE - 6
        role = _ROLES[column]
        drawing.box(left, top, _COLUMN - 8, height, role, strength=0.18)
        drawing.box(left, top, _COLUMN - 8, height, role, is_outline=True)
        words = served[lanes[0]].words[column * BLOCK_SIZE : (column + 1) * BLOCK_SIZE]
        middle = top + height / 2
        drawing.text(left + 8, middle - 2, " ".join(words), size=12)
        count = pool.ref_count(block)
        holders = f"block {block}, {count} holder{'s' if count > 1 else ''}"
        drawing.text(left + 8, middle + 13, holders, "grey", size=12)
