"""A timeline as a picture: requests over steps, and under them the tokens of each step."""

from collections.abc import Iterator
from itertools import count
from typing import Final
from xml.sax.saxutils import escape

from .requests import TraceRequest
from .timeline import Cell, Timeline, short_name

_LEFT, _RIGHT, _TOP = 160, 24, 70
_ROW, _GAP = 26, 4  # a request's line, and the space above its highest box
_CHART = 130  # height of the totals
_WIDTH, _NARROWEST, _WIDEST = 940, 2.0, 44.0  # of all steps, and of one
_LABEL_WIDTH: Final = 6.2  # of a digit in font size 10
_CSS: Final = """
svg{font:12px system-ui,sans-serif;background:#fff}
.paper{fill:#fff}.ink{fill:#1f2328}.soft{fill:#59636e}.line{stroke:#d1d9e0}
.mid{text-anchor:middle}.end{text-anchor:end}.title{font:600 14px system-ui,sans-serif}
.prefill{fill:#2a78b8}.decode{fill:#c2610c}.on{fill:#fff}.num{font-size:10px}
.wait{stroke:#8b949e;stroke-dasharray:2 3;stroke-width:1.5}
.budget{stroke:#cf222e;stroke-dasharray:6 4;stroke-width:1.5}
@media(prefers-color-scheme:dark){svg{background:#0d1117}
.paper{fill:#0d1117}.ink{fill:#e6edf3}.soft{fill:#9198a1}.line{stroke:#30363d}
.prefill{fill:#58a6ff}.decode{fill:#f0883e}.on{fill:#0d1117}
.budget{stroke:#ff7b72}}
"""


def as_svg(timeline: Timeline, title: str) -> str:
    """The picture as the text of an SVG file; it follows the reader's light or dark colours."""
    return _Picture(timeline).draw(title)


class _Picture:
    """One picture's measures."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        num_steps = len(timeline.steps)
        self.step_width = min(_WIDEST, max(_NARROWEST, _WIDTH / num_steps))
        self.right = _LEFT + max(300, num_steps * self.step_width)
        self.gantt_end = _TOP + _ROW * len(timeline.requests)
        self.chart_top = self.gantt_end + 26
        self.bottom = self.chart_top + _CHART
        self.largest, self.shows_budget = timeline.largest_chunk, timeline.shows_budget
        self.top_tokens = timeline.budget if self.shows_budget else max(timeline.totals)

    def draw(self, title: str) -> str:
        width, height = self.right + _RIGHT, self.bottom + 52
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
            f'width="{width:g}" height="{height:g}" role="img">',
            f"<title>{escape(title)}</title><style>{_CSS}</style>",
            f'<rect class="paper" width="{width:g}" height="{height:g}"/>',
            _text(16, 24, title, "ink title"),
            *self._legend(),
            *self._x_axis(),
            *(part for i, request in enumerate(self.timeline.requests) for part in self._row(i, request)),
            *self._totals(),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _x(self, step: int) -> float:
        return round(_LEFT + step * self.step_width, 2)

    def _legend(self) -> Iterator[str]:
        x = 16.0
        prefill = f"prefill (height = tokens, full = {self.largest})"
        for css, name in (("prefill", prefill), ("decode", "decode"), ("wait", "waiting")):
            if css == "wait":
                yield _line(x, 44, x + 12, 44, css)
            else:
                yield _rect(x, 39, 12, 10, css)
            yield _text(x + 18, 48, name, "soft")
            x += 36 + 6.1 * len(name)
        if self.shows_budget:
            yield _line(x, 44, x + 16, 44, "budget")
            yield _text(x + 22, 48, f"budget {self.timeline.budget}", "soft")
        else:
            yield _text(x, 48, f"budget {self.timeline.budget}, above the picture", "soft")

    def _x_axis(self) -> Iterator[str]:
        num_steps = len(self.timeline.steps)
        round_numbers = (n * 10**power for power in count() for n in (1, 2, 5))
        every = next(n for n in round_numbers if n * self.step_width >= 28)
        for step in range(0, num_steps, every):
            middle = self._x(step) + self.step_width / 2
            yield _line(middle, _TOP, middle, self.bottom + 4, "line")
            yield _text(middle, self.bottom + 18, str(step), "soft mid")
        yield _text((_LEFT + self.right) / 2, self.bottom + 40, "step", "ink mid")

    def _row(self, i: int, request: TraceRequest) -> Iterator[str]:
        floor = _TOP + _ROW * (i + 1)
        name = request.name
        yield (
            f'<text class="ink" x="{_LEFT - 10}" y="{floor - 8}" text-anchor="end">'
            f"<title>{escape(name)}</title>{escape(short_name(name))}</text>"
        )
        yield _line(_LEFT, floor, self.right, floor, "line")
        for cell in self.timeline.cells(request):
            yield self._cell(cell, name, floor)

    def _cell(self, cell: Cell, name: str, floor: float) -> str:
        x, width = self._x(cell.step), self.step_width
        if cell.kind == "waiting":
            return _line(x, floor - 8, x + width, floor - 8, "wait")
        # In proportion, but never too low to be seen.
        height = max(4.0, (_ROW - _GAP) * cell.num_tokens / self.largest)
        tooltip = f"step {cell.step}, {name}: {cell.num_tokens} ({cell.kind})"
        box = _rect(x + _seam(width), floor - height, width - 2 * _seam(width), height, cell.kind, tooltip)
        return box + self._number(cell, x + width / 2, floor, height)

    def _number(self, cell: Cell, middle: float, floor: float, height: float) -> str:
        number = str(cell.num_tokens)
        if cell.num_tokens == 1 or len(number) * _LABEL_WIDTH + 3 > self.step_width:
            return ""
        inside = height >= 13
        y = floor - height / 2 + 3.5 if inside else floor - height - 2
        return _text(middle, y, number, f"{'on' if inside else 'ink'} num mid")

    def _totals(self) -> Iterator[str]:
        timeline, scale = self.timeline, _CHART / self.top_tokens
        for tokens in sorted({0, self.top_tokens // 2, self.top_tokens}):
            y = self.bottom - tokens * scale
            yield _line(_LEFT, y, self.right, y, "line")
            yield _text(_LEFT - 10, y + 4, str(tokens), "soft end")
        for middle, label in (
            (self.bottom - _CHART / 2, "tokens in the step"),
            ((_TOP + self.gantt_end) / 2, "request"),
        ):
            yield _text(24, middle, label, "ink mid", f' transform="rotate(-90 24 {middle:g})"')
        for step, (total, prefill) in enumerate(zip(timeline.totals, timeline.prefill_totals, strict=True)):
            x, seam = self._x(step), _seam(self.step_width)
            y, width = self.bottom, self.step_width - 2 * seam
            for css, tokens in (("decode", total - prefill), ("prefill", prefill)):
                if tokens:
                    y -= tokens * scale
                    yield _rect(x + seam, y, width, tokens * scale, css, f"step {step}: {tokens} ({css})")
            if total and len(str(total)) * _LABEL_WIDTH + 3 <= self.step_width:
                yield _text(x + self.step_width / 2, y - 3, str(total), "ink num mid")
        if self.shows_budget:
            yield _line(_LEFT, self.chart_top, self.right, self.chart_top, "budget")


def _seam(width: float) -> float:
    """The space on each side of a box, so that neighbours can be told apart."""
    return 0.5 if width >= 6 else 0.0


def _rect(x: float, y: float, width: float, height: float, css: str, tooltip: str = "") -> str:
    box = f'<rect class="{css}" x="{x:g}" y="{y:.4g}" width="{width:.4g}" height="{height:.4g}"'
    return f"{box}><title>{escape(tooltip)}</title></rect>" if tooltip else f"{box}/>"


def _line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<path class="{css}" d="M{x1:g} {y1:g}L{x2:g} {y2:g}"/>'


def _text(x: float, y: float, text: str, css: str, more: str = "") -> str:
    return f'<text class="{css}" x="{x:g}" y="{y:g}"{more}>{escape(text)}</text>'
