"""Draws book/src/figures/chunked-prefill-timeline.svg: one long prompt meets one decoding request.

Run it as `python -m book.figures chunked_prefill_timeline`. The clock counts tokens that went through the
model, not seconds, so the figure is the same on every machine.
"""

from dataclasses import dataclass
from itertools import pairwise

from book.figures.drawing import Drawing

LONG_PROMPT, CHUNK = 32, 8
TOKENS_OF_A, ARRIVAL_OF_B = 8, 3  # B arrives when A has three of its eight tokens

UNIT, LEFT, LANE, HEIGHT, PANEL = 8.5, 118, 28, 22, 138
TITLE = "A long prompt at once, and in chunks: the tokens of another request wait for it"


@dataclass(frozen=True)
class Step:
    """A forward pass: which request it serves, and the tokens on the clock before and after it."""

    request: str
    start: int
    end: int


@dataclass(frozen=True)
class Schedule:
    """What happened after A's first token, which stands at 0."""

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


def schedule(prefill_step: int) -> Schedule:
    """The three-phase loop of day 2.7 on token counts: a chunk of B, if any, then a token of A.

    B asks for a single token, which its last chunk brings, so it never decodes.
    """
    steps: list[Step] = []
    clock, tokens_of_a, computed_of_b = 0, 1, 0
    arrival_of_b = first_token_of_b = 0
    while tokens_of_a < TOKENS_OF_A or computed_of_b < LONG_PROMPT:
        if tokens_of_a == ARRIVAL_OF_B:
            arrival_of_b = clock
        if tokens_of_a >= ARRIVAL_OF_B and computed_of_b < LONG_PROMPT:
            chunk = min(prefill_step, LONG_PROMPT - computed_of_b)
            steps.append(Step("B", clock, clock + chunk))
            clock, computed_of_b, first_token_of_b = clock + chunk, computed_of_b + chunk, clock + chunk
        if tokens_of_a < TOKENS_OF_A:
            steps.append(Step("A", clock, clock + 1))
            clock, tokens_of_a = clock + 1, tokens_of_a + 1
    return Schedule(steps, arrival_of_b, first_token_of_b)


def draw() -> str:
    """The figure as SVG."""
    drawing = Drawing(TITLE)
    plain, chunked = schedule(LONG_PROMPT), schedule(CHUNK)
    _panel(drawing, f"Whole prompt at once (prefill_step ≥ {LONG_PROMPT})", plain, 0)
    _panel(drawing, f"Chunked (prefill_step = {CHUNK})", chunked, PANEL)
    _axis(drawing, 2 * PANEL + 12)
    return drawing.svg()


def _panel(drawing: Drawing, title: str, run: Schedule, top: float) -> None:
    lane_a, lane_b = top + 36, top + 36 + LANE
    drawing.text(12, top + 24, title, bold=True)
    drawing.text(12, lane_a + 16, "A is decoding")
    drawing.text(12, lane_b + 16, "B, a long prompt")
    for step in run.steps:
        is_a, size = step.request == "A", step.end - step.start
        lane, role, label = (lane_a, "blue", "") if is_a else (lane_b, "orange", f"{size} tokens")
        drawing.box(_x(step.start) + 0.5, lane, size * UNIT - 1, HEIGHT, role, label=label)
    gaps, times = run.gaps_of_a, run.tokens_of_a
    at = gaps.index(max(gaps))
    _span(drawing, times[at], times[at + 1], lane_b + 34, "blue", f"A's longest gap: {max(gaps)}")
    waits = f"B's first token: {run.first_token_of_b - run.arrival_of_b} after it arrived"
    _span(drawing, run.arrival_of_b, run.first_token_of_b, lane_b + 55, "orange", waits)


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
    drawing.text(12, y + 19, "tokens computed", "grey")


def _x(at: int) -> float:
    return LEFT + at * UNIT
