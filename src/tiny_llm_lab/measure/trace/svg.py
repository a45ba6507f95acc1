"""A timeline as a picture: requests over steps, and under them the tokens of each step.

No plotting library: the same bytes on every machine, a tooltip on every box, and colours
that follow the reader's light or dark theme.
"""

from collections.abc import Iterator
from itertools import count
from typing import Final

from tiny_llm_lab.measure.trace.requests import TraceRequest
from tiny_llm_lab.measure.trace.svg_parts import box, document, line, text
from tiny_llm_lab.measure.trace.timeline import Timeline, short_name

_LEFT, _RIGHT, _TOP, _BOTTOM = 160, 24, 70, 52  # around the steps
_ROW, _GAP, _CHART = 26, 4, 130  # a request's row, the space above its highest box, the height of the totals
_WIDTH, _NARROWEST, _WIDEST = 940, 2.0, 44.0  # of all steps, and of one
_DIGIT: Final = 6.2  # width in font size 10


def as_svg(timeline: Timeline, title: str) -> str:
    """An SVG document in light or dark, as its reader has it."""
    return _Picture(timeline).draw(title)


class _Picture:
    """One picture's measures."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline, num_steps = timeline, len(timeline.steps)
        self.step_width = min(_WIDEST, max(_NARROWEST, _WIDTH / num_steps))
        self.seam = 0.5 if self.step_width >= 6 else 0.0  # neighbours can be told apart
        self.right = _LEFT + max(300, num_steps * self.step_width)
        self.rows_end = _TOP + _ROW * len(timeline.requests)
        self.bottom = self.rows_end + 26 + _CHART

    def draw(self, title: str) -> str:
        rows = (part for i, request in enumerate(self.timeline.requests) for part in self._row(i, request))
        parts = (*self._legend(), *self._axes(), *rows, *self._totals())
        return document(self.right + _RIGHT, self.bottom + _BOTTOM, title, parts)

    def _legend(self) -> Iterator[str]:
        timeline, x = self.timeline, 16.0
        names = {
            "prefill": f"prefill (height = tokens, full = {timeline.largest_chunk})",
            "decode": "decode",
            "waiting": "waiting",
            "budget": f"budget {timeline.budget}{'' if timeline.shows_budget else ', above the picture'}",
        }
        for css, name in names.items():
            is_box = css in ("prefill", "decode")
            yield box(css, x, 39, 14, 10) if is_box else line(css, x, 44, x + 14, 44)
            yield text(x + 20, 48, name, "soft")
            x += 38 + 6.1 * len(name)

    def _axes(self) -> Iterator[str]:
        round_numbers = (n * 10**power for power in count() for n in (1, 2, 5))
        every = next(n for n in round_numbers if n * self.step_width >= 28)
        for step in range(0, len(self.timeline.steps), every):
            middle = self._x(step) + self.step_width / 2
            yield line("line", middle, _TOP, middle, self.bottom + 4)
            yield text(middle, self.bottom + 18, str(step), "soft mid")
        yield text((_LEFT + self.right) / 2, self.bottom + 40, "step", "ink mid")
        titles = {"request": (_TOP + self.rows_end) / 2, "tokens in the step": self.bottom - _CHART / 2}
        for title, middle in titles.items():
            yield text(24, middle, title, "ink mid", turned=True)

    def _row(self, i: int, request: TraceRequest) -> Iterator[str]:
        floor = _TOP + _ROW * (i + 1)
        yield text(_LEFT - 10, floor - 8, short_name(request.name), "ink end", tooltip=request.name)
        yield line("line", _LEFT, floor, self.right, floor)
        for step, kind, num_tokens in self.timeline.cells(request):
            x = self._x(step)
            if kind == "waiting":
                yield line(kind, x, floor - 8, x + self.step_width, floor - 8)
                continue
            # In proportion, but never too low to see.
            height = max(4.0, (_ROW - _GAP) * num_tokens / self.timeline.largest_chunk)
            yield self._bar(kind, step, floor, height, f"step {step}, {request.name}: {num_tokens} ({kind})")
            if num_tokens > 1 and height >= 13:
                yield self._number(step, floor - height / 2 + 3.5, num_tokens, "on")
            elif num_tokens > 1:
                yield self._number(step, floor - height - 2, num_tokens, "ink")

    def _totals(self) -> Iterator[str]:
        timeline, top = self.timeline, self.timeline.top
        for tokens in sorted({0, top // 2, top}):
            y = self.bottom - tokens * _CHART / top
            yield line("line", _LEFT, y, self.right, y)
            yield text(_LEFT - 10, y + 4, str(tokens), "soft end")
        for step, (total, prefill) in enumerate(zip(timeline.totals, timeline.prefill_totals, strict=True)):
            y = self.bottom
            for kind, tokens in (("decode", total - prefill), ("prefill", prefill)):
                if tokens:
                    height = tokens * _CHART / top
                    yield self._bar(kind, step, y, height, f"step {step}: {tokens} ({kind})")
                    y -= height
            if total:
                yield self._number(step, y - 3, total, "ink")
        if timeline.shows_budget:
            yield line("budget", _LEFT, self.bottom - _CHART, self.right, self.bottom - _CHART)

    def _x(self, step: int) -> float:
        return round(_LEFT + step * self.step_width, 2)

    def _bar(self, kind: str, step: int, floor: float, height: float, tooltip: str) -> str:
        width = self.step_width - 2 * self.seam
        return box(kind, self._x(step) + self.seam, floor - height, width, height, tooltip)

    def _number(self, step: int, y: float, number: int, css: str) -> str:
        """A number over a step; nothing where the step is too narrow for it."""
        if len(str(number)) * _DIGIT + 3 > self.step_width:
            return ""
        return text(self._x(step) + self.step_width / 2, y, str(number), f"{css} num mid")
