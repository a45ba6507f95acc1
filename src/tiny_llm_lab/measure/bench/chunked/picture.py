"""The picture of `bench-chunked-prefill`: gaps and chunks over time for each schedule, and peak memory."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import StrMethodFormatter

from tiny_llm_lab.measure.bench.latency import victim_itl
from tiny_llm_lab.measure.bench.run import Run
from tiny_llm_lab.measure.bench.spec import Schedule
from tiny_llm_lab.measure.ink import CHUNKS, OFF, PREFILL, save_figure
from tiny_llm_lab.runtime.console.talk import plural

_QUESTION: Final = "How long do running answers wait for their next token while long prompts are computed?"
_PANEL_INCHES: Final = (12.0, 2.3)


def draw(groups: Mapping[Schedule, Sequence[Run]], title: str, path: Path) -> None:
    """Write a PNG with one panel per schedule, smallest chunks first, each showing its typical run."""
    width, height = _PANEL_INCHES
    schedules = sorted(groups, key=lambda each: (each.max_chunk, each.budget))
    runs = {schedule.name: typical(groups[schedule]) for schedule in schedules}
    # Figure without pyplot: no window system, no global state.
    figure = Figure(figsize=(width, height * (len(runs) + 1)), layout="constrained")
    # The last part has the bars of memory, which share no axis with the others.
    parts = figure.add_gridspec(2, 1, height_ratios=(len(runs) + 0.4, 0.6))
    grid = figure.add_subfigure(parts[0]).subplots(len(runs), 1, sharex=True, sharey=True, squeeze=False)
    for axes, (name, run) in zip(grid[:, 0], runs.items(), strict=True):
        _panel(axes, name, run)
    _legend(grid[0, 0])
    grid[-1, 0].set_xlabel("seconds since the start of the run")
    _memory(figure.add_subplot(parts[1]), {name: (run.peak_bytes or 0) / 1e6 for name, run in runs.items()})
    figure.suptitle(f"{_QUESTION}\n{title}", fontsize=11)
    save_figure(figure, path)


def typical(runs: Sequence[Run]) -> Run:
    """The run whose longest gap is the (lower) median of its repeats."""
    ordered = sorted(runs, key=lambda run: max(victim_itl(run)))
    return ordered[(len(runs) - 1) // 2]


def _panel(axes: Axes, name: str, run: Run) -> None:
    longs = set(run.long_spans())
    chunks = [chunk for chunk in run.chunks if chunk.prompt_idx in longs]
    for number, chunk in enumerate(chunks):
        color = PREFILL[number % 2]
        axes.axvspan(chunk.start_s, chunk.end_s, color=color, linewidth=0, zorder=0)
    for idx in run.victims():
        timing = run.timings[idx]
        gaps_ms = [gap * 1000 for gap in timing.itl_s]
        # Steps: a gap is the height of the whole time between two tokens.
        axes.step(timing.distinct_s, [gaps_ms[0], *gaps_ms], color=CHUNKS, linewidth=0.8, alpha=0.6)
    longest_ms = max(victim_itl(run)) * 1000
    axes.axhline(longest_ms, color=OFF, linewidth=0.8, linestyle="--")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_ylabel("wait (ms)")
    axes.grid(axis="y", which="major", alpha=0.3)
    pieces = f"in {len(chunks)} chunks" if len(chunks) > len(longs) else "each in one piece"
    message = f"{plural(len(longs), 'long prompt')} {pieces}, longest gap {longest_ms:.0f} ms"
    axes.set_title(f"{name}: {message}", loc="left", fontsize=10)


def _memory(axes: Axes, peak_mb: Mapping[str, float]) -> None:
    bars = axes.barh([*peak_mb], [*peak_mb.values()], color=CHUNKS, height=0.6)
    axes.bar_label(bars, fmt="{:,.1f}", padding=3, fontsize=8)
    axes.invert_yaxis()  # in the order of the panels
    axes.set_xlabel("MB")
    axes.set_title("Peak memory above the weights", loc="left", fontsize=10)


def _legend(axes: Axes) -> None:
    handles = [
        Patch(color=PREFILL[0], label="one chunk of a long prompt"),
        Line2D([], [], color=CHUNKS, label="wait for the next token"),
        Line2D([], [], color=OFF, linestyle="--", linewidth=0.8, label="longest wait"),
    ]
    axes.legend(handles=handles, loc="upper right", fontsize=8, ncols=3, framealpha=0.9)
