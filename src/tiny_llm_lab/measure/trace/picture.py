"""A run as a picture: requests over steps, and under them the tokens of each step; and a sweep as bars."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tiny_llm_lab.measure.ink import CHUNKS, KINDS, OFF, OTHER, save_svg
from tiny_llm_lab.measure.trace.sweep import SweepRow
from tiny_llm_lab.measure.trace.timeline import Timeline, short_name

_COLORS: Final = {"decode": KINDS[1], "prefill": CHUNKS}
_HIGHEST, _LOWEST = 0.8, 0.12  # of a row: a box of the most tokens of a request in a step, and the least box
_MOST_NUMBERED: Final = 40  # steps, beyond which their totals do not fit


def save_run(timeline: Timeline, title: str, path: Path) -> None:
    """Write the picture of a run as SVG. Raises UserError for a file that cannot be written."""
    num_steps, num_rows = len(timeline.steps), len(timeline.requests)
    size = (max(6.0, min(14.0, 2 + 0.3 * num_steps)), 3 + 0.35 * num_rows)
    figure = Figure(figsize=size, layout="constrained")
    rows, totals = figure.subplots(2, 1, sharex=True, height_ratios=[max(2, num_rows), 4])
    draw_requests(rows, timeline)
    draw_totals(totals, timeline)
    figure.legend(*totals.get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    save_svg(figure, path)


def draw_requests(axes: Axes, timeline: Timeline) -> None:
    """A row for each request, the first one at the top: a box a step, as high as its tokens, dots to wait."""
    num_rows = len(timeline.requests)
    for number, request in enumerate(timeline.requests):
        floor, cells = num_rows - 1 - number, list(timeline.cells(request))
        for kind, color in _COLORS.items():
            computed = [cell for cell in cells if cell.kind == kind]
            # In proportion, but never too low to see.
            heights = [max(_LOWEST, _HIGHEST * cell.num_tokens / timeline.largest_chunk) for cell in computed]
            axes.bar([cell.step for cell in computed], heights, 0.9, floor, color=color)
        waits = [cell.step for cell in cells if cell.kind == "waiting"]
        axes.plot(waits, [floor + _LOWEST] * len(waits), ".", color=OTHER, markersize=3)
    names = [short_name(request.name) for request in timeline.requests]
    axes.set_yticks(range(num_rows - 1, -1, -1), names)
    axes.set_ylim(0, num_rows)


def draw_totals(axes: Axes, timeline: Timeline) -> None:
    """The tokens of each step, those of prompts on those of answers, and the budget where it is near."""
    steps, prefill = range(len(timeline.steps)), timeline.prefill_totals
    decode = [total - part for total, part in zip(timeline.totals, prefill, strict=True)]
    axes.bar(steps, decode, 0.9, color=_COLORS["decode"], label="decode")
    largest = f"prefill; the highest box above: {timeline.largest_chunk} tokens"
    bars = axes.bar(steps, prefill, 0.9, decode, color=_COLORS["prefill"], label=largest)
    if len(steps) <= _MOST_NUMBERED:
        axes.bar_label(bars, [str(total or "") for total in timeline.totals], fontsize=8)
    if timeline.shows_budget:
        axes.axhline(timeline.budget, color=OFF, linestyle="--", label=f"budget {timeline.budget}")
    axes.set(xlabel="step", ylabel="tokens in the step")


def save_sweep(rows: Sequence[SweepRow], title: str, path: Path) -> None:
    """Write the longest TTFT and the worst stall over the thresholds as SVG; raises as `save_run`."""
    figure = Figure(figsize=(max(6.0, len(rows)), 5.0), layout="constrained")
    panels = {
        "longest TTFT, in steps": (CHUNKS, [max(row.ttft_steps.values()) for row in rows]),
        "worst stall, in tokens": (KINDS[1], [row.worst_stall for row in rows]),
    }
    for axes, (name, (color, values)) in zip(figure.subplots(2, 1), panels.items(), strict=True):
        axes.bar_label(axes.bar(range(len(rows)), values, color=color), fontsize=8)
        axes.set_xticks(range(len(rows)), [str(row.threshold or "off") for row in rows])
        axes.set_title(name, loc="left", fontsize=10)
    figure.axes[-1].set_xlabel("long_prefill_token_threshold (off: a prompt is not cut)")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    save_svg(figure, path)
