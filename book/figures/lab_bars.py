"""Bars of recorded labs: a median for each variant, with its lowest and highest value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from book.figures.drawing import WIDTH, Drawing

from tools.book.results import Figure, read_results

_ROOT: Final = Path(__file__).parents[2]
_LEFT, _RIGHT, _HEIGHT, _PITCH = 172, WIDTH - 70, 16, 24
# A colour means what it means in the labs' own figures; the rest is blue, for chunks.
_ROLES: Final[Mapping[str, str]] = {
    "off": "red",
    "cache off": "red",
    "slo": "purple",
    "512, 256 each": "green",
}


@dataclass(frozen=True)
class Panel:
    """One column of a lab's table as bars."""

    title: str
    lab: str
    what: str
    unit: str = "ms"


def draw_bars(title: str, panels: Sequence[Panel]) -> str:
    """The panels below each other, each with its own scale, as SVG."""
    d, results, top = Drawing(title), read_results(_ROOT), 24.0
    for panel in panels:
        found = [each for each in results[f"lab-{panel.lab}"].figures if each.what == panel.what]
        d.text(12, top, panel.title, bold=True)
        top = _bars(d, found, panel.unit, top + 12) + 22
    return d.svg()


def _bars(d: Drawing, figures: Sequence[Figure], unit: str, top: float) -> float:
    most = max(figure.high or figure.value for figure in figures)

    def x(value: float) -> float:
        return round(_LEFT + (_RIGHT - _LEFT) * value / most, 1)

    for place, figure in enumerate(figures):
        y = top + place * _PITCH
        d.text(_LEFT - 8, y + 13, figure.case, "grey", anchor="end")
        d.box(_LEFT, y, max(1.0, x(figure.value) - _LEFT), _HEIGHT, _ROLES.get(figure.case, "blue"))
        if figure.low is not None and figure.high is not None:
            d.line([(x(figure.low), y + 8), (x(figure.high), y + 8)], "ink")
        number = f"{figure.value:,.0f}" if figure.value >= 100 else f"{figure.value:.3g}"
        d.text(x(max(figure.value, figure.high or 0)) + 6, y + 13, f"{number} {unit}".strip())
    return top + len(figures) * _PITCH
