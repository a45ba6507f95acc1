"""Draws book/src/figures/lab-neighbours.svg, what lab mixed and lab stress measured."""

from typing import Final

from book.figures.lab_bars import Panel, draw_bars

_TITLE: Final = (
    "Short requests next to long prompts: longest gaps, and first tokens of those that come during a prefill."
)
_PANELS: Final = (
    Panel("Longest gap of a short request in mixed traffic", "mixed", "ITL max short ms"),
    Panel("TTFT of short prompts that come during a long one", "stress", "shorts, TTFT ms"),
)


def draw() -> str:
    """The figure as SVG."""
    return draw_bars(_TITLE, _PANELS)
