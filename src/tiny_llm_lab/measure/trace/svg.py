"""A timeline as a picture: requests over steps, and under them the tokens of each step.

No plotting library: the same bytes on every machine, a tooltip on every box, and colours
that follow the reader's light or dark theme.
"""

from collections.abc import Iterator
from itertools import count
from typing import Final
from xml.sax.saxutils import escape

from tiny_llm_lab.measure.trace.requests import TraceRequest
from tiny_llm_lab.measure.trace.timeline import Timeline, short_name

_LEFT, _RIGHT, _TOP, _BOTTOM = 160, 24, 70, 52  # around the steps
_ROW, _GAP, _CHART = 26, 4, 130  # a request's row, the space above its highest box, the height of the totals
_WIDTH, _NARROWEST, _WIDEST = 940, 2.0, 44.0  # of all steps, and of one
_DIGIT: Final = 6.2  # width in font size 10
_CSS: Final = """
svg{font:12px system-ui,sans-serif;background:#fff}
.paper{fill:#fff}.ink{fill:#1f2328}.soft{fill:#59636e}.line{stroke:#d1d9e0}
.mid{text-anchor:middle}.end{text-anchor:end}.title{font:600 14px system-ui,sans-serif}
.prefill{fill:#2a78b8}.decode{fill:#c2610c}.on{fill:#fff}.num{font-size:10px}
.waiting{stroke:#8b949e;stroke-dasharray:2 3;stroke-width:1.5}
.budget{stroke:#cf222e;stroke-dasharray:6 4;stroke-width:1.5}
@media(prefers-color-scheme:dark){svg{background:#0d1117}
.paper{fill:#0d1117}.ink{fill:#e6edf3}.soft{fill:#9198a1}.line{stroke:#30363d}
.prefill{fill:#58a6ff}.decode{fill:#f0883e}.on{fill:#0d1117}
.budget{stroke:#ff7b72}}
"""


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
        width, height = f"{self.right + _RIGHT:g}", f"{self.bottom + _BOTTOM:g}"
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img">',
            f"<title>{escape(title)}</title><style>{_CSS}</style>",
            f'<rect class="paper" width="{width}" height="{height}"/>',
            _text(16, 24, title, "ink title"),
            *self._legend(),
            *self._axes(),
            *(part for i, request in enumerate(self.timeline.requests) for part in self._row(i, request)),
            *self._totals(),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

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
            yield _box(css, x, 39, 14, 10) if is_box else _line(css, x, 44, x + 14, 44)
            yield _text(x + 20, 48, name, "soft")
            x += 38 + 6.1 * len(name)

    def _axes(self) -> Iterator[str]:
        round_numbers = (n * 10**power for power in count() for n in (1, 2, 5))
        every = next(n for n in round_numbers if n * self.step_width >= 28)
        for step in range(0, len(self.timeline.steps), every):
            middle = self._x(step) + self.step_width / 2
            yield _line("line", middle, _TOP, middle, self.bottom + 4)
            yield _text(middle, self.bottom + 18, str(step), "soft mid")
        yield _text((_LEFT + self.right) / 2, self.bottom + 40, "step", "ink mid")
        titles = {"request": (_TOP + self.rows_end) / 2, "tokens in the step": self.bottom - _CHART / 2}
        for title, middle in titles.items():
            yield _text(24, middle, title, "ink mid", turned=True)

    def _row(self, i: int, request: TraceRequest) -> Iterator[str]:
        floor = _TOP + _ROW * (i + 1)
        yield _text(_LEFT - 10, floor - 8, short_name(request.name), "ink end", tooltip=request.name)
        yield _line("line", _LEFT, floor, self.right, floor)
        for step, kind, num_tokens in self.timeline.cells(request):
            x = self._x(step)
            if kind == "waiting":
                yield _line(kind, x, floor - 8, x + self.step_width, floor - 8)
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
            yield _line("line", _LEFT, y, self.right, y)
            yield _text(_LEFT - 10, y + 4, str(tokens), "soft end")
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
            yield _line("budget", _LEFT, self.bottom - _CHART, self.right, self.bottom - _CHART)

    def _x(self, step: int) -> float:
        return round(_LEFT + step * self.step_width, 2)

    def _bar(self, kind: str, step: int, floor: float, height: float, tooltip: str) -> str:
        width = self.step_width - 2 * self.seam
        return _box(kind, self._x(step) + self.seam, floor - height, width, height, tooltip)

    def _number(self, step: int, y: float, number: int, css: str) -> str:
        """A number over a step; nothing where the step is too narrow for it."""
        if len(str(number)) * _DIGIT + 3 > self.step_width:
            return ""
        return _text(self._x(step) + self.step_width / 2, y, str(number), f"{css} num mid")


def _box(css: str, x: float, y: float, width: float, height: float, tooltip: str = "") -> str:
    place = f'x="{x:g}" y="{y:.4g}" width="{width:.4g}" height="{height:.4g}"'
    return f'<rect class="{css}" {place}>{_tooltip(tooltip)}</rect>'


def _line(css: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path class="{css}" d="M{x1:g} {y1:g}L{x2:g} {y2:g}"/>'


def _text(x: float, y: float, text: str, css: str, *, tooltip: str = "", turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:g} {y:g})"' if turned else ""
    return f'<text class="{css}" x="{x:g}" y="{y:g}"{turn}>{_tooltip(tooltip)}{escape(text)}</text>'


def _tooltip(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""
