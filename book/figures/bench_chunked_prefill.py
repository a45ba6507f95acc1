"""Draws book/src/figures/bench-chunked-prefill.svg, the latencies of results/chunked-prefill.json."""

from math import log10
from pathlib import Path
from typing import Final

from book.figures.drawing import Drawing

from tools.book.results import Figure, read_results

_ROOT: Final = Path(__file__).parents[2]
# column of the results: (colour, what it is)
_SERIES: Final = {
    "TTFT long": ("purple", "TTFT, long prompts"),
    "TTFT short": ("green", "TTFT, short prompts"),
    "ITL p99": ("orange", "ITL p99"),
    "ITL p50": ("blue", "ITL p50"),
}
_BESIDE: Final = {"purple": -10, "orange": 14, "blue": -8}  # the lines with numbers
_LEFT, _TOP, _COLUMN, _DECADE, _MOST, _LEAST = 44, 44, 108, 90, 120, 0.4


def draw() -> str:
    """The figure as SVG."""
    figures = read_results(_ROOT)["chunked-prefill"].figures
    d = Drawing(
        "Latencies over prefill_step: with smaller chunks p99 of the gaps falls and first tokens wait."
    )
    d.text(12, 22, "Latencies in ms, on a logarithmic scale", bold=True)
    for ms in (1, 10, 100):
        d.line([(_LEFT, _y(ms)), (_LEFT + 4 * _COLUMN, _y(ms))], "faint", width=1)
        d.text(_LEFT - 8, _y(ms) + 4, str(ms), "grey", anchor="end")
    for number, (what, (role, about)) in enumerate(_SERIES.items()):
        _series(d, [figure for figure in figures if figure.what == what], role)
        left, y = 12 + 228 * (number % 2), _y(_LEAST) + 60 + 22 * (number // 2)
        d.box(left, y - 11, 12, 12, role)
        d.text(left + 18, y, about)
    for place, case in enumerate(dict.fromkeys(figure.case for figure in figures)):
        label = "not cut" if case == "999,999" else case
        d.text(_x(place), _y(_LEAST) + 20, label, "grey", anchor="middle")
    d.text(_LEFT + 2 * _COLUMN, _y(_LEAST) + 38, "prefill_step", "grey", anchor="middle")
    return d.svg()


def _series(d: Drawing, figures: list[Figure], role: str) -> None:
    """Medians on a line, each with its lowest and highest value."""
    d.line([(_x(place), _y(figure.value)) for place, figure in enumerate(figures)], role, width=2)
    for place, figure in enumerate(figures):
        ends = [_y(ms) for ms in (figure.low, figure.high) if ms is not None]
        d.line([(_x(place), y) for y in ends], role, width=1)
        d.dot(_x(place), _y(figure.value), 4, role)
        if role in _BESIDE:
            right, down = (8, _BESIDE[role]) if place else (-8, 4)  # where no line is
            anchor = "start" if place else "end"
            at = (_x(place) + right, _y(figure.value) + down)
            d.text(*at, f"{figure.value:.3g}", role, anchor=anchor)


def _x(place: int) -> float:
    return _LEFT + (place + 0.4) * _COLUMN


def _y(ms: float) -> float:
    return round(_TOP + log10(_MOST / ms) * _DECADE, 2)
