"""Draws book/src/figures/chunked-prefill-timeline.svg: one long prompt meets one decoding request.

The clock counts tokens that went through the model, not seconds, so the figure is the same on every machine.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from book.figures.drawing import Drawing
from book.figures.knobs import Knobs
from tests.helpers.phases import serve

from tiny_llm_lab.types import DoneEvent, Prompt, SamplingParams

LONG_PROMPT, CHUNK = 32, 8
TOKENS_OF_A, ARRIVAL_OF_B = 8, 3  # B arrives when A has three of its eight tokens

UNIT, LEFT, LANE, HEIGHT, PANEL = 8.5, 118, 28, 22, 138
TITLE = "A long prompt at once, and in chunks: the tokens of another request wait for it"
_LETTER: Final = 8  # units that a letter of a label takes


@dataclass(frozen=True)
class Step:
    """A forward pass: which request it serves, and the tokens on the clock before and after it."""

    request: str
    start: int
    end: int


@dataclass(frozen=True)
class Schedule:
    """What happened after A's first token, which is at 0."""

    steps: list[Step]
    arrival_of_b: int
    first_token_of_b: int

    @property
    def tokens_of_a(self) -> list[int]:
        return [0, *(step.end for step in self.steps if step.request == "A")]

    @property
    def gaps_of_a(self) -> list[int]:
        times = self.tokens_of_a
        return [after - before for before, after in pairwise(times)]


def prompts() -> list[Prompt]:
    """A's prompt is one token, so its first token is at 1. B wants one token, so it never decodes."""
    a = Prompt([1], SamplingParams(max_tokens=TOKENS_OF_A))
    return [a, Prompt([1] * LONG_PROMPT, SamplingParams(max_tokens=1), arrival_s=float(ARRIVAL_OF_B))]


def schedule(prefill_step: int) -> Schedule:
    """The reference's loop of day 2.7."""
    (_, b), events = serve(prompts(), prefill_step)
    timed = [("AB"[e.prompt_idx], round(e.time_s) - 1) for e in events if not isinstance(e, DoneEvent)]
    steps = [Step(name, start, end) for (_, start), (name, end) in pairwise(timed) if end > start]
    arrival = ARRIVAL_OF_B - 1
    return Schedule(steps, arrival, arrival + round(b.timing.ttft_s or 0))


def _frame(prefill_step: int) -> tuple[Drawing, str]:
    drawing = Drawing(TITLE)
    plain, chunked = schedule(LONG_PROMPT), schedule(prefill_step)
    _panel(drawing, f"Whole prompt at once (prefill_step ≥ {LONG_PROMPT})", plain, 0)
    _panel(drawing, f"Chunked (prefill_step = {prefill_step})", chunked, PANEL)
    _axis(drawing, 2 * PANEL + 12)
    waited = chunked.first_token_of_b - chunked.arrival_of_b
    gap = max(chunked.gaps_of_a)
    return drawing, f"A's longest gap is {gap} tokens. B has its first token after {waited}."


KNOBS: Final = Knobs({"prefill_step": (1, 2, 4, 8, 16, 32)}, (CHUNK,), _frame)


def draw() -> str:
    """The figure as SVG."""
    return KNOBS.svg()


def _panel(drawing: Drawing, title: str, run: Schedule, top: float) -> None:
    lane_a, lane_b = top + 36, top + 36 + LANE
    drawing.text(12, top + 24, title, bold=True)
    drawing.text(12, lane_a + 16, "A is decoding")
    drawing.text(12, lane_b + 16, "B, a long prompt")
    for step in run.steps:
        is_a, width = step.request == "A", (step.end - step.start) * UNIT - 1
        lane, role = (lane_a, "blue") if is_a else (lane_b, "orange")
        label = "" if is_a else _label(step.end - step.start, width)
        drawing.box(_x(step.start) + 0.5, lane, width, HEIGHT, role, label=label)
    gaps, times = run.gaps_of_a, run.tokens_of_a
    at = gaps.index(max(gaps))
    _span(drawing, times[at], times[at + 1], lane_b + 34, "blue", f"A's longest gap: {max(gaps)}")
    waits = f"B's first token: {run.first_token_of_b - run.arrival_of_b} after it arrived"
    _span(drawing, run.arrival_of_b, run.first_token_of_b, lane_b + 55, "orange", waits)


def _label(size: int, width: float) -> str:
    """What fits into the box of a chunk."""
    labels = (f"{size} tokens", str(size))
    return next((label for label in labels if len(label) * _LETTER < width), "")


def _span(drawing: Drawing, start: int, end: int, y: float, role: str, label: str) -> None:
    """A line with two ends and its label: in its middle, or behind it where it is too short."""
    room = 6.6 * len(label)
    if (end - start) * UNIT > room + 16:
        middle = (_x(start) + _x(end)) / 2
        drawing.line([(_x(start), y), (middle - room / 2, y)], role)
        drawing.line([(middle + room / 2, y), (_x(end), y)], role)
        drawing.text(middle, y + 4, label, role, anchor="middle")
    else:
        drawing.line([(_x(start), y), (_x(end), y)], role)
        drawing.text(_x(end) + 8, y + 4, label, role)
    for at in (start, end):
        drawing.line([(_x(at), y - 4), (_x(at), y + 4)], role)


def _axis(drawing: Drawing, y: float) -> None:
    drawing.line([(_x(0), y), (_x(40), y)])
    for at in range(0, 41, 8):
        drawing.line([(_x(at), y), (_x(at), y + 5)])
        drawing.text(_x(at), y + 19, str(at), "grey", anchor="middle")
    drawing.text(12, y + 19, "tokens computed", "grey", size=11)


def _x(at: int) -> float:
    return LEFT + at * UNIT
