"""Draws a load run: how TTFT and ITL are distributed, and ITL over time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from tiny_llm_lab.measure.ink import KINDS, open_up, save_figure
from tiny_llm_lab.measure.load.record import LoadRun, RequestRecord, timings
from tiny_llm_lab.runtime.metrics import percentile, pooled_itl

_SIZE: Final = (12.0, 7.5)


def draw(run: LoadRun, title: str, path: Path) -> None:
    """Write a PNG; each kind of request has a colour."""
    # Figure without pyplot: no window system, no global state.
    figure = Figure(figsize=_SIZE, layout="constrained")
    grid = figure.add_gridspec(2, 2)
    ttft, itl = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
    over_time = figure.add_subplot(grid[1, :])
    kinds = sorted({record.request.kind for record in run.completed})
    for kind, color in zip(kinds, KINDS * len(kinds), strict=False):
        records = run.of_kind(kind)
        label = f"{kind}: {len(records)} requests" if kind else f"{len(records)} requests"
        _shares(ttft, [each for t in timings(records) if (each := t.ttft_s) is not None], label, color)
        _shares(itl, pooled_itl(timings(records)), label, color)
        _gaps(over_time, records, color)
    for axes, name in ((ttft, "TTFT"), (itl, "ITL")):
        axes.set(xlabel=f"{name} (ms)", ylabel="share at most, %", title=f"{name}: distribution")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    over_time.set(xlabel="seconds since the start of the run", ylabel="ITL (ms)", title="ITL over time")
    over_time.set_yscale("log")
    over_time.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    for axes in (ttft, itl, over_time):
        axes.grid(alpha=0.3)
    if kinds:
        ttft.legend(fontsize=9)
    open_up(figure.axes)
    figure.suptitle(title, fontsize=11)
    save_figure(figure, path)


def _shares(axes: Axes, values_s: Sequence[float], label: str, color: str) -> None:
    """The share of values that are at most so long, with a line at the 99th percentile."""
    values = sorted(value * 1e3 for value in values_s)
    if values:
        shares = [100 * (number + 1) / len(values) for number in range(len(values))]
        axes.step(values, shares, where="post", color=color, label=label)
        axes.axvline(percentile(values, 99), color=color, linestyle=":", linewidth=1)


def _gaps(axes: Axes, records: Sequence[RequestRecord], color: str) -> None:
    points = [
        (time_s, gap * 1e3)
        for record in records
        for time_s, gap in zip(record.timing.distinct_s[1:], record.timing.itl_s, strict=True)
    ]
    if points:
        times, gaps = zip(*points, strict=True)
        axes.scatter(times, gaps, s=5, alpha=0.5, color=color, linewidths=0)
