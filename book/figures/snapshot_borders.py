"""Draws snapshot-borders.svg: after which blocks of a conversation a snapshot of the states is kept."""

from typing import Final

from book.figures.drawing import Drawing

BLOCK: Final = 16
EVERY: Final = 64  # tokens whose keys and values weigh as much as a snapshot
PROMPT, ANSWER, SHARED = 150, 40, 100  # tokens; another prompt begins with the same SHARED tokens
_LEFT, _TOP, _CELL = 14, 70, 37
_ROLES: Final = {"prompt": "green", "interval": "blue", "junction": "purple", "newest": "orange"}
_SAID: Final = {
    "prompt": f"{PROMPT // BLOCK * BLOCK}: the end of the prompt's last full block",
    "interval": f"every {EVERY} tokens, which weigh as much as a snapshot",
    "junction": f"{SHARED // BLOCK * BLOCK}: as far as another prompt has the same blocks",
    "newest": "the newest block of the running answer, instead of the one before",
}


def borders() -> dict[int, str]:
    """Tokens after which a snapshot is kept when the answer is done, and why."""
    total = PROMPT + ANSWER
    found = dict.fromkeys(range(EVERY, total + 1, EVERY), "interval")
    found[(PROMPT - 1) // BLOCK * BLOCK] = "prompt"
    found[SHARED // BLOCK * BLOCK] = "junction"
    found[total // BLOCK * BLOCK] = "newest"
    return found


def draw() -> str:
    """The figure as SVG."""
    total, kept = PROMPT + ANSWER, borders()
    drawing = Drawing(
        f"A prompt of {PROMPT} tokens and an answer of {ANSWER} in blocks of {BLOCK}, with snapshots"
    )
    title = f"{PROMPT} tokens of a prompt, {ANSWER} of its answer, in blocks of {BLOCK}"
    drawing.text(12, 22, title, bold=True)
    for block in range(-(-total // BLOCK)):
        start, end = block * BLOCK, min(total, (block + 1) * BLOCK)
        left = _LEFT + block * _CELL
        share = max(0, min(end, PROMPT) - start) / BLOCK * (_CELL - 2)
        drawing.box(left, _TOP, _CELL - 2, 26, "faint", strength=0.5)
        drawing.box(
            left + share, _TOP, (end - start) / BLOCK * (_CELL - 2) - share, 26, "orange", strength=0.25
        )
        if end in kept and end == start + BLOCK:
            right = left + _CELL - 1
            drawing.line([(right, _TOP - 12), (right, _TOP + 36)], _ROLES[kept[end]], width=3)
            drawing.text(right, _TOP - 18, str(end), _ROLES[kept[end]], anchor="middle", size=11)
    for place, (why, text) in enumerate(_SAID.items()):
        y = _TOP + 64 + place * 20
        drawing.line([(_LEFT + 4, y - 11), (_LEFT + 4, y + 3)], _ROLES[why], width=3)
        drawing.text(_LEFT + 14, y, text, size=12)
    return drawing.svg()
