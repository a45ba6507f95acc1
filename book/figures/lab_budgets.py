"""Draws book/src/figures/lab-budgets.svg, what lab sweep measured."""

from typing import Final

from book.figures.lab_bars import Panel, draw_bars

_TITLE: Final = "A smaller budget lowers the p99 of the gaps and lets long prompts wait longer."
_PANELS: Final = (
    Panel("ITL p99 of the streams, by token budget", "sweep", "ITL_p99 ms"),
    Panel("TTFT of the long prompts, by token budget", "sweep", "TTFT_p50 ms"),
)


def draw() -> str:
    """The figure as SVG."""
    return draw_bars(_TITLE, _PANELS)
