"""Draws book/src/figures/lab-savings.svg, what lab prefix and lab memory measured."""

from typing import Final

from book.figures.lab_bars import Panel, draw_bars

_TITLE: Final = (
    "A cached prefix saves time of later requests; chunks save memory above the stored keys and values."
)
_PANELS: Final = (
    Panel("TTFT of later requests with a shared system prompt", "prefix", "TTFT next ms"),
    Panel("Memory of one prefill above weights and blocks, by chunk", "memory", "above held", "MB"),
)


def draw() -> str:
    """The figure as SVG."""
    return draw_bars(_TITLE, _PANELS)
