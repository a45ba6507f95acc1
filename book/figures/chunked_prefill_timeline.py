"""Draws book/src/figures/chunked-prefill-timeline.svg: one long prompt meets one decoding request.

Run it as `python book/figures/chunked_prefill_timeline.py`. The clock counts tokens that went through the
model, not seconds, so the figure is the same on every machine.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

TARGET = Path(__file__).parents[1] / "src" / "figures" / "chunked-prefill-timeline.svg"

LONG_PROMPT, CHUNK = 32, 8
TOKENS_OF_A, ARRIVAL_OF_B = 8, 3  # B arrives when A has three of its eight tokens

UNIT, LEFT, LANE, TOP, PANEL = 16, 150, 30, 40, 150
WIDTH = LEFT + 42 * UNIT
BLUE, ORANGE, INK, GREY = "#2a78b8", "#d9822b", "#222", "#777"


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
    plain, chunked = schedule(LONG_PROMPT), schedule(CHUNK)
    parts = [
        *_panel(f"Whole prompt at once (prefill_step ≥ {LONG_PROMPT})", plain, 0),
        *_panel(f"Chunked (prefill_step = {CHUNK})", chunked, PANEL),
        *_axis(2 * PANEL + TOP - 20),
    ]
    height = 2 * PANEL + TOP + 34
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 20} {height}" '
        f'width="{WIDTH + 20}" height="{height}" font-family="sans-serif" font-size="13" fill="{INK}">\n'
        f'<rect width="100%" height="100%" rx="6" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _panel(title: str, run: Schedule, top: int) -> list[str]:
    lane_a, lane_b = top + TOP, top + TOP + LANE
    parts = [
        _text(16, top + 26, title, weight="bold"),
        _text(16, lane_a + 17, "A is decoding"),
        _text(16, lane_b + 17, "B, a long prompt"),
    ]
    for step in run.steps:
        lane, colour = (lane_a, BLUE) if step.request == "A" else (lane_b, ORANGE)
        width = (step.end - step.start) * UNIT
        parts.append(
            f'<rect x="{_x(step.start)}" y="{lane}" width="{width}" height="{LANE - 6}" rx="2" '
            f'fill="{colour}" stroke="#fff"/>'
        )
        if step.request == "B":
            label = f"{step.end - step.start} tokens"
            parts.append(_text(_x(step.start) + width / 2, lane + 17, label, "#fff", "middle"))
    return [*parts, *_longest_gap(run, lane_b + LANE + 4), *_waiting_of_b(run, lane_b + LANE + 26)]


def _longest_gap(run: Schedule, y: int) -> list[str]:
    gaps = run.gaps_of_a
    at = gaps.index(max(gaps))
    times = run.tokens_of_a
    return _span(times[at], times[at + 1], y, BLUE, f"A's longest gap: {max(gaps)}")


def _waiting_of_b(run: Schedule, y: int) -> list[str]:
    label = f"B's first token: {run.first_token_of_b - run.arrival_of_b} after it arrived"
    return _span(run.arrival_of_b, run.first_token_of_b, y, ORANGE, label)


def _span(start: int, end: int, y: int, colour: str, label: str) -> list[str]:
    line = f'<path d="M{_x(start)} {y - 4}v8m0 -4H{_x(end)}m0 -4v8" stroke="{colour}" fill="none"/>'
    if (end - start) * UNIT > 7.5 * len(label):
        middle = (_x(start) + _x(end)) / 2
        room = 7.2 * len(label)
        back = f'<rect x="{middle - room / 2:g}" y="{y - 8}" width="{room:g}" height="16" fill="#fff"/>'
        return [line, back, _text(middle, y + 4, label, colour, "middle")]
    return [line, _text(_x(end) + 8, y + 4, label, colour)]


def _axis(y: int) -> list[str]:
    ticks = [
        f'<path d="M{_x(at)} {y}v5" stroke="{GREY}"/>' + _text(_x(at), y + 19, str(at), GREY, "middle")
        for at in range(0, 41, 8)
    ]
    line = f'<path d="M{_x(0)} {y}H{_x(40)}" stroke="{GREY}"/>'
    return [line, *ticks, _text(16, y + 19, "tokens computed", GREY)]


def _x(at: int) -> int:
    return LEFT + at * UNIT


def _text(
    x: float, y: float, text: str, colour: str = INK, anchor: str = "start", weight: str = "normal"
) -> str:
    style = f'fill="{colour}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{text}</text>'


if __name__ == "__main__":
    TARGET.write_text(draw(), encoding="utf-8")
