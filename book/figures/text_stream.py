"""Draws what a TextStream releases and holds back, token by token, with the stop string END."""

from dataclasses import dataclass

from tiny_llm_lab import load_checkpoint
from tiny_llm_ref.generate.text_stream import TextStream

from .drawing import Drawing

TEXT, STOP = "a café. THE END of it", "END"
BYTE, HALF = "\N{REPLACEMENT CHARACTER}", "½é"  # a token of one of the two bytes of é
TOP, ROW = 48.0, 25.0
TOKEN, RELEASED, WAITING = 16.0, 130.0, 272.0


@dataclass(frozen=True)
class Push:
    """One token, the text it released, the text so far, and whether the stream has ended."""

    token: str
    released: str
    text: str
    is_over: bool


def trace() -> list[Push]:
    """What the reference's stream does with the default model's tokens of TEXT."""
    tokenizer = load_checkpoint("default", device="cpu").tokenizer
    stream, ids = TextStream(tokenizer.detokenizer, [STOP]), tokenizer.encode(TEXT)
    pushes = []
    for token in ids:
        was_over, released = stream.stopped, stream.push(token)
        pushes.append(Push(tokenizer.decode([token]), released, stream.text, was_over))
    return pushes


def draw() -> str:
    """The figure as SVG."""
    pushes = trace()
    drawing = Drawing(
        "Fourteen tokens of a text and what each of them releases. The two halves of é come out together, "
        "the beginning of END is held back, and after END nothing is released."
    )
    heads = ((TOKEN, "token"), (RELEASED, "released"), (WAITING, "held back"))
    for x, label in heads:
        drawing.text(x, 28, label, bold=True)
    for i, push in enumerate(pushes):
        y = TOP + i * ROW
        _chip(drawing, TOKEN, y, push.token.replace(BYTE, HALF), "faint" if push.is_over else "blue")
        if push.released:
            _chip(drawing, RELEASED, y, push.released, "green")
        waiting, why = _waiting(push, pushes, i)
        if waiting:
            _chip(drawing, WAITING, y, waiting, "orange")
        drawing.text(WAITING + (64 if waiting else 0), y + 14, why, "grey", size=12)
    return drawing.svg()


def _waiting(push: Push, pushes: list[Push], i: int) -> tuple[str, str]:
    """What is known but not shown after token i, and why."""
    if push.is_over:
        return "", "ignored: the text is over"
    if push.token == BYTE:
        return ("", "") if push.released else (HALF, "not a character yet")
    seen = "".join(each.token for each in pushes[: i + 1])
    if i + 1 < len(pushes) and pushes[i + 1].is_over:
        return "", f"{STOP} found: the text ends before it"
    ends = [STOP[:n] for n in range(len(STOP), 0, -1) if seen.endswith(STOP[:n])]
    return (ends[0], f"may begin {STOP}") if ends else ("", "")


def _chip(drawing: Drawing, x: float, y: float, text: str, role: str) -> None:
    shown = text.replace(" ", "␣")
    drawing.box(x, y, 24 + 7.2 * max(0, len(shown) - 1), ROW - 5, role, strength=0.3)
    drawing.text(x + 7, y + 14.5, shown)
