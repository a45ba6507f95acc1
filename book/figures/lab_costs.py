"""Draws book/src/figures/lab-costs.svg, what lab hurts and lab capacity measured."""

from typing import Final

from book.figures.lab_bars import Panel, draw_bars

_TITLE: Final = "What chunks cost when nobody waits, and how much more load they allow when users do."
_PANELS: Final = (
    Panel("Time with chunks of 256 / time without", "hurts", "chunked / off", "×"),
    Panel("Requests a second within the latency limits", "capacity", "requests/s", "/s"),
)


def draw() -> str:
    """The figure as SVG."""
    return draw_bars(_TITLE, _PANELS)
