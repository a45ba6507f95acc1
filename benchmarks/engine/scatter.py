"""Draws the times of steps over their tokens, with the line through them and its knee."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

from tiny_llm_lab.measure.ink import CHUNKS, OTHER, save_figure

_WIDTH: Final = 110  # of a line of text below the figure, in characters


def save_scatter(
    tokens: Sequence[int], seconds: Sequence[float], fit: Mapping[str, float | None], said: str, path: Path
) -> None:
    """Write a PNG with a dot for each step; `fit` is `tokens_fit` of the same steps, `said` its sentence."""
    figure = Figure(figsize=(8.0, 4.6), layout="constrained")
    axes = figure.subplots()
    slope, intercept, knee = (fit[key] or 0.0 for key in ("slope_s", "intercept_s", "knee_tokens"))
    ends = (0, max(tokens))
    axes.plot(
        ends, [1e3 * (intercept + slope * each) for each in ends], color=OTHER, label="line of best fit"
    )
    axes.plot(tokens, [1e3 * each for each in seconds], "o", color=CHUNKS, markersize=4, label="a step")
    if knee:
        axes.axvline(knee, color=OTHER, linestyle="--", linewidth=1, label=f"knee, {knee:.0f} tokens")
    axes.set_xlabel("tokens of a step")
    axes.set_ylabel("time of the step (ms)")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    figure.suptitle("Do a step's tokens give its time?", x=0.01, ha="left", fontsize=12, fontweight="bold")
    figure.supxlabel(textwrap.fill(said, _WIDTH), x=0.01, ha="left", fontsize=9)
    save_figure(figure, path)
