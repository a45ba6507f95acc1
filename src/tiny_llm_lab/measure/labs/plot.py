"""Pieces of the labs' figures: bars with spreads, gaps over time, a metric over budgets."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from tiny_llm_lab.measure.bench.report import Row
from tiny_llm_lab.measure.labs.result import Draw
from tiny_llm_lab.types import Timing

COLORS: Final = ("#b5261e", "#1f5fa8", "#3b8a3e", "#b07a12", "#6b4ba3")  # the baseline is red
_DPI: Final = 110


def save(draw: Draw, path: Path) -> None:
    """Write a figure as PNG."""
    figure = Figure(figsize=(10.0, 4.0), layout="constrained")  # without pyplot: no window, no global state
    draw(figure)
    figure.savefig(path, dpi=_DPI)


def bars(axes: Axes, title: str, rows: Sequence[Row], key: str, scale: float = 1e3, unit: str = "ms") -> None:
    """The median of each row, with its least and largest sample."""
    for number, row in enumerate(rows):
        values = [value * scale for value in row.samples.get(key, ()) if value is not None]
        if not values:
            continue
        middle = median(values)
        spread = [[middle - min(values)], [max(values) - middle]]
        color = COLORS[number % len(COLORS)]
        axes.bar(number, middle, yerr=spread, capsize=4, color=color, alpha=0.85, width=0.6)
        shown = f"{middle:,.0f}" if middle >= 100 else f"{middle:.3g}"
        axes.annotate(shown, (number, max(values)), (0, 3), textcoords="offset points", ha="center")
    axes.set_xticks(range(len(rows)), [row.name for row in rows])
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_ylabel(unit)
    axes.margins(y=0.15)
    axes.grid(axis="y", alpha=0.3)


def bar_panels(figure: Figure, rows: Sequence[Row], panels: Sequence[tuple[str, str, float, str]]) -> None:
    """One panel of bars for each (title, key, scale, unit)."""
    grid = figure.subplots(1, len(panels), squeeze=False)
    for axes, (title, key, scale, unit) in zip(grid[0], panels, strict=True):
        bars(axes, title, rows, key, scale, unit)


def gaps_over_time(axes: Axes, title: str, timings: Iterable[Timing], color: str) -> None:
    """Every gap between two tokens of a request, at the time of the later one."""
    for timing in timings:
        axes.plot(
            timing.distinct_s[1:], [gap * 1e3 for gap in timing.itl_s], ".", color=color, markersize=2.5
        )
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel("seconds since the start of the run")
    axes.set_ylabel("ITL (ms)")
    axes.grid(axis="y", alpha=0.3)


def over_budgets(
    axes: Axes,
    title: str,
    budgets: Sequence[int],
    rows: Sequence[Row],
    key: str,
    scale: float = 1e3,
    unit: str = "ms",
) -> None:
    """A metric over the token budget, its spread as a band."""
    samples = [[value * scale for value in row.samples[key] if value is not None] for row in rows]
    axes.plot(budgets, [median(each) for each in samples], "o-", color=COLORS[1])
    axes.fill_between(budgets, [min(each) for each in samples], [max(each) for each in samples], alpha=0.2)
    axes.set_xscale("log", base=2)
    axes.set_xticks(budgets)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    axes.set_xlabel("max_num_batched_tokens")
    axes.grid(alpha=0.3)
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_ylabel(unit)
