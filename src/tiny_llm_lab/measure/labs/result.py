"""What a lab found: samples, our conclusion from them, what others claim, and pieces of its figure."""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from tiny_llm_lab.measure.bench.report import Row, Section
from tiny_llm_lab.measure.ink import CHUNKS, color_of, save_figure
from tiny_llm_lab.types import Timing

SCHEMA: Final = 1
Verdict = Literal["confirmed", "refuted", "not measurable"]
Draw = Callable[[Figure], None]


@dataclass(frozen=True)
class Claim:
    """A statement that the lab tests, and its measurement."""

    text: str
    verdict: Verdict
    measured: str


def judged(text: str, holds: bool | None, measured: str) -> Claim:
    """A claim that holds, does not, or cannot be measured here (None)."""
    verdict: Verdict = "not measurable" if holds is None else "confirmed" if holds else "refuted"
    return Claim(text, verdict, measured)


@dataclass(frozen=True)
class Finding:
    """What the samples show: sentences, and claims with verdicts. `problem` says why they show nothing."""

    conclusion: Sequence[str]
    claims: Sequence[Claim] = ()
    problem: str | None = None


@dataclass(frozen=True)
class LabResult:
    """One lab: its table, its finding, and how to draw it."""

    name: str
    question: str
    section: Section
    finding: Finding
    draw: Draw
    skipped: Sequence[str] = ()  # variants that could not run, and why

    def to_json(self, command: str, settings: Mapping[str, Any], host: Mapping[str, Any]) -> dict[str, Any]:
        """Everything but the drawing; times in seconds."""
        return {
            "schema": SCHEMA,
            "lab": self.name,
            "question": self.question,
            "command": command,
            "settings": dict(settings),
            "host": dict(host),
            "is_valid": self.finding.problem is None,
            "problem": self.finding.problem,
            "conclusion": list(self.finding.conclusion),
            "claims": [asdict(claim) for claim in self.finding.claims],
            "skipped": list(self.skipped),
            "section": self.section.to_json(),
        }


_WHISKER: Final = "#1d2530"
_MANY: Final = 5  # bars, between which there is less room
_LEAST_INSIDE: Final = 0.15  # of the highest bar: below that a number does not fit in
_WIDTH: Final = 150  # of a line of text below a figure, in characters


def save(result: LabResult, path: Path) -> None:
    """Write a lab's figure as PNG: its question above, and what was found below."""
    figure = Figure(figsize=(10.0, 4.6), layout="constrained")  # without pyplot: no window, no global state
    result.draw(figure)
    figure.suptitle(result.question, x=0.01, ha="left", fontsize=12, fontweight="bold")
    found = result.finding.problem or result.finding.conclusion[0]
    message = "INVALID: " * (result.finding.problem is not None) + found
    figure.supxlabel(textwrap.fill(message, _WIDTH), x=0.01, ha="left", fontsize=9)
    save_figure(figure, path)


def bars(axes: Axes, title: str, rows: Sequence[Row], key: str, scale: float = 1e3, unit: str = "ms") -> None:
    """The median of each row, with its least and largest sample."""
    shown: dict[int, float] = {}
    for number, row in enumerate(rows):
        values = [value * scale for value in row.samples.get(key, ()) if value is not None]
        if not values:
            continue
        middle = median(values)
        spread = [[middle - min(values)], [max(values) - middle]]
        axes.bar(number, middle, color=color_of(row.name), width=0.8)
        # On the right edge, so that the number at the median can be read.
        axes.errorbar(number + 0.32, middle, yerr=spread, capsize=2, color=_WHISKER, linewidth=1)
        shown[number] = middle
    _number(axes, shown)
    axes.set_xticks(range(len(rows)), [row.name for row in rows])
    axes.set_title(f"{title} ({unit})", loc="left", fontsize=10)
    axes.set_yticks([])  # every bar says its number
    axes.spines["left"].set_visible(False)


def _number(axes: Axes, middles: Mapping[int, float]) -> None:
    """Write each median where it is: inside its bar if that is high enough."""
    for number, middle in middles.items():
        text = f"{middle:,.0f}" if middle >= 100 else f"{middle:.3g}"
        is_inside = middle > _LEAST_INSIDE * max(middles.values())
        axes.annotate(
            text,
            (number - 0.05, middle),
            (0, -4 if is_inside else 3),
            textcoords="offset points",
            ha="center",
            va="top" if is_inside else "bottom",
            color="white" if is_inside else "black",
            fontsize=8 if len(middles) < _MANY else 7,
        )


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
    axes.set(xlabel="seconds since the start of the run", ylabel="ITL (ms)")
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
    axes.plot(budgets, [median(each) for each in samples], "o-", color=CHUNKS)
    axes.fill_between(
        budgets, [min(each) for each in samples], [max(each) for each in samples], color=CHUNKS, alpha=0.2
    )
    axes.set_xscale("log", base=2)
    axes.set(xticks=budgets, xlabel="max_num_batched_tokens", ylabel=unit)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    axes.grid(alpha=0.3)
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    axes.set_title(title, loc="left", fontsize=10)
