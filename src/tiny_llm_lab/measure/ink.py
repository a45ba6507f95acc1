"""What a colour means in every figure of the labs and benchmarks, and how axes look."""

from math import log2
from pathlib import Path
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.figure import Figure

from tiny_llm_lab.runtime.console.talk import writing
from tiny_llm_lab.types import UserError

OFF: Final = "#b5261e"  # without chunks; and the longest wait
CHUNKS: Final = "#1f5fa8"  # with chunks, where no budget is named
POLICY: Final = "#6b4ba3"  # the engine chooses
SHARE: Final = "#3b8a3e"  # a share of the budget for each prompt
PREFILL: Final = ("#f5c77e", "#fbe3bb")  # a long prompt is computed; alternating, to tell neighbours apart
OTHER: Final = "#5a6675"  # no variant of a server
KINDS: Final = ("#1f5fa8", "#d1762b", "#3c8d5a", "#7b4fa3")  # of requests, where nothing else is compared
# Token budgets from 128 to 4096, the larger the darker.
_BUDGETS: Final = ("#8fb8e6", "#629bd9", "#1f5fa8", "#184a83", "#12375f", "#0c2440")
_DPI: Final = 110
_NAMED: Final = {"off": OFF, "slo": POLICY, "default": CHUNKS}


def color_of(variant: str) -> str:
    """The colour of a server's variant: `off`, a token budget, `slo`, or a budget with a share."""
    if variant.isdigit():
        return _BUDGETS[min(max(round(log2(int(variant))) - 7, 0), len(_BUDGETS) - 1)]
    return SHARE if variant.endswith(" each") else _NAMED.get(variant, OTHER)


def save_figure(figure: Figure, path: Path, **settings: Any) -> None:
    """Write the figure, without boxes: only the axes themselves are drawn.

    Raises UserError for a file that cannot be written, or a suffix that is not drawn.
    """
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    with writing(path, "choose another file"):
        try:
            figure.savefig(path, dpi=_DPI, **settings)
        except ValueError as error:
            raise UserError(f"cannot draw {path}: {error}") from None


def save_svg(figure: Figure, path: Path) -> None:
    """The same as SVG, whatever the suffix, with words that can be searched and the same bytes each time."""
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "tiny-llm"}):
        save_figure(figure, path, format="svg", metadata={"Date": None})
