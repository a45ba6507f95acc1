"""Draws book/src/figures/lab-stalls.svg, what lab hol and lab itl measured."""

from typing import Final

from book.figures.lab_bars import Panel, draw_bars

_TITLE: Final = "Without chunks a stream waits for a whole prefill; with chunks of 512, for one chunk."
_PANELS: Final = (
    Panel("Longest gap of a stream while one prompt is computed", "hol", "longest gap of a stream ms"),
    Panel("ITL p99 of all streams, with several long prompts", "itl", "ITL p99 ms"),
)


def draw() -> str:
    """The figure as SVG."""
    return draw_bars(_TITLE, _PANELS)
