"""Draws which tokens each step of the two loops computes: the plain loop, and the loop with a cache."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import mlx.core as mx

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.types import Memory, Model, TokenEvent, Wanted
from tiny_llm_ref import build_model, simple_generate, simple_generate_with_kv_cache

from .drawing import Drawing

PROMPT, ANSWER = "Once upon a", 6
CELL, TOP, LEFT, STEP = 15.0, 62.0, 58.0, 232.0
Loop = Callable[..., Iterator[TokenEvent]]


class Recorder:
    """A model that notes the positions of the tokens it is shown."""

    def __init__(self, model: Model) -> None:
        self.model, self.config, self.ops, self.spans = (
            model,
            model.config,
            model.ops,
            list[tuple[int, int]](),
        )
        self.create_kv_cache = model.create_kv_cache

    def __call__(
        self,
        tokens: mx.array,
        offset: int = 0,
        cache: Sequence[Memory] | None = None,
        *,
        wanted: Wanted,
    ) -> mx.array:
        self.spans.append((offset, offset + tokens.shape[1]))
        return self.model(tokens, offset, cache, wanted=wanted)


def spans(loop: Loop) -> list[tuple[int, int]]:
    """First position and end of what the reference's `loop` computes, step by step."""
    checkpoint = load_checkpoint("default", device="cpu")
    recorder = Recorder(build_model(checkpoint))
    list(partial(loop, recorder, checkpoint.tokenizer, PROMPT)(max_tokens=ANSWER))
    return recorder.spans


def draw() -> str:
    """The figure as SVG."""
    plain, cached = spans(simple_generate), spans(simple_generate_with_kv_cache)
    counts = [sum(end - start for start, end in each) for each in (plain, cached)]
    drawing = Drawing(
        f"Which tokens each of {len(plain)} steps computes. Without a cache each computes all tokens so "
        f"far, {counts[0]} in all; with one the first computes the prompt and every other a single token, "
        f"{counts[1]} in all."
    )
    for i, (title, each) in enumerate((("without a cache", plain), ("with a cache", cached))):
        x = LEFT + i * STEP
        drawing.text(x, 24, title, bold=True)
        drawing.text(x, 42, f"{counts[i]} tokens computed", "grey", size=12)
        for step, (start, end) in enumerate(each):
            _row(drawing, x, TOP + step * (CELL + 3), start, end, is_first=step == 0)
    for step in range(len(plain)):
        drawing.text(16, TOP + step * (CELL + 3) + 12, f"step {step + 1}", "grey", size=12)
    y = TOP + len(plain) * (CELL + 3) + 20
    legend = (("blue", "new"), ("red", "computed again"), ("faint", "read from the cache"))
    for i, (role, label) in enumerate(legend):
        x = 16 + (0, 70, 214)[i]
        drawing.box(x, y - 11, 12, 12, role, strength=0.6)
        drawing.text(x + 18, y, label)
    return drawing.svg()


def _row(drawing: Drawing, x: float, y: float, start: int, end: int, *, is_first: bool) -> None:
    for position in range(end):
        is_new = is_first or position == end - 1
        role = "faint" if position < start else "blue" if is_new else "red"
        drawing.box(x + position * CELL, y, CELL - 2, CELL - 2, role, strength=0.6)
