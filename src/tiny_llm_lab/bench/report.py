"""What every benchmark reports: rows of samples, ratios, notes; one JSON schema and one kind of table."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Final, Literal

from rich import box
from rich.console import Console
from rich.table import Table

SCHEMA: Final = 1
_GAP, _EDGES = 3, 2  # characters between two columns of a table, and at its sides

Samples = Sequence[float | None]  # one for each round; None where there was nothing to measure


@dataclass(frozen=True)
class Column:
    """How a metric is shown: the median of its samples times `scale`, and how their spread is added."""

    key: str
    title: str
    spec: str = ".1f"
    scale: float = 1.0
    spread: Literal["none", "below", "beside"] = "none"
    unit: str = ""

    def cell(self, samples: Samples) -> str:
        """The text of one cell; empty without samples, "-" when one is None."""
        known = [value * self.scale for value in samples if value is not None]
        if len(known) < len(samples):
            return "-"
        if not known:
            return ""
        low, middle, high = (format(value, self.spec) for value in (min(known), median(known), max(known)))
        if self.spread == "none" or low == high:
            return middle + self.unit
        return f"{middle}{self.unit}{' ' if self.spread == 'beside' else chr(10)}({low}-{high})"


TIME: Final = Column("seconds", "ms median (min-max)", ".3f", 1e3, "beside")


@dataclass(frozen=True)
class Row:
    """One variant, and its samples of each metric."""

    name: str
    samples: Mapping[str, Samples]

    def median(self, key: str) -> float:
        """The median of a metric that every round has measured."""
        return float(median(value for value in self.samples[key] if value is not None))

    def to_json(self) -> dict[str, Any]:
        """Median, least and largest sample of each metric, and the samples themselves."""
        metrics: dict[str, Any] = {}
        for key, samples in self.samples.items():
            known = [value for value in samples if value is not None]
            summary = {"median": median(known), "min": min(known), "max": max(known)} if known else {}
            metrics[key] = summary | {"samples": list(samples)}
        return {"name": self.name, "metrics": metrics}


@dataclass(frozen=True)
class Ratio:
    """How one variant compares with another: the ratio of medians, and the least and largest of a round."""

    name: str
    value: float
    low: float
    high: float
    at_most: float | None = None
    at_least: float | None = None

    @classmethod
    def of(cls, name: str, over: Samples, under: Samples, **aims: float) -> "Ratio | None":
        """`over` / `under`, paired by round; None where a sample is missing or there is nothing to divide by.

        `aims` are at_most and at_least.
        """
        pairs = [(a, b) for a, b in zip(over, under, strict=True) if a is not None and b]
        if not pairs or len(pairs) < len(over):
            return None
        each = [a / b for a, b in pairs]
        value = median(a for a, _ in pairs) / median(b for _, b in pairs)
        return cls(name, value, min(each), max(each), **aims)

    @property
    def is_met(self) -> bool | None:
        """Whether the aim is met; None when there is none."""
        if self.at_most is None and self.at_least is None:
            return None
        is_low_enough = self.at_most is None or self.value <= self.at_most
        return is_low_enough and (self.at_least is None or self.value >= self.at_least)

    def line(self) -> str:
        """The ratio as one line of text."""
        aims = (("at most", self.at_most), ("at least", self.at_least))
        said = [f"{sign} {limit:g}" for sign, limit in aims if limit is not None]
        aim = f", aim {' and '.join(said)}: {'met' if self.is_met else 'MISSED'}" if said else ""
        # A ratio of a single pair has no spread.
        spread = "" if self.low == self.high else f" ({self.low:.3f} to {self.high:.3f})"
        return f"{self.name}: {self.value:.3f}{spread}{aim}"


@dataclass(frozen=True)
class Section:
    """One comparison: its table, ratios, and notes; `data` has what the rows do not."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    ratios: Sequence[Ratio | None] = ()
    notes: Sequence[str] = ()
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Everything, in the units of the samples."""
        return {
            "name": self.name,
            "title": self.title,
            "rows": [row.to_json() for row in self.rows],
            "ratios": [asdict(each) | {"is_met": each.is_met} for each in self.ratios if each],
            "notes": list(self.notes),
            "data": dict(self.data),
        }


def timed_section(
    name: str,
    title: str,
    seconds: Mapping[str, Sequence[float]],
    ratios: Sequence[Ratio | None],
    notes: Sequence[str] = (),
    data: Mapping[str, Any] | None = None,
) -> Section:
    """A comparison of times, as `time_variants` returns them."""
    rows = [Row(variant, {TIME.key: values}) for variant, values in seconds.items()]
    return Section(name, title, (TIME,), rows, ratios, notes, data or {})


def document(
    benchmark: str,
    settings: Mapping[str, Any],
    host: Mapping[str, Any],
    sections: Sequence[Section] = (),
    **more: Any,
) -> dict[str, Any]:
    """The JSON object that a benchmark prints or writes; `more` are top-level keys of its own."""
    return {
        "schema": SCHEMA,
        "benchmark": benchmark,
        "settings": dict(settings),
        "host": dict(host),
        "sections": [section.to_json() for section in sections],
        **more,
    }


def print_section(console: Console, section: Section) -> None:
    """Title, table, ratios and notes; a table that is too wide is folded, so that no number is cut."""
    console.print(section.title, highlight=False, soft_wrap=True)
    cells = [
        [row.name, *(c.cell(row.samples.get(c.key, ())) for c in section.columns)] for row in section.rows
    ]
    print_table(console, ["variant", *(column.title for column in section.columns)], cells)
    for line in [*(ratio.line() for ratio in section.ratios if ratio), *section.notes]:
        console.print(line, highlight=False, soft_wrap=True)


def print_table(console: Console, titles: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """One table, or several below each other, each with the first column, when one would be too wide."""
    widths = [
        max(len(line) for text in (title, *(row[i] for row in cells)) for line in text.split("\n"))
        for i, title in enumerate(titles)
    ]
    for group in _fitting(widths, console.width - _EDGES):
        table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
        for i in (0, *group):
            table.add_column(titles[i], justify="right" if i else "left", no_wrap=True, min_width=widths[i])
        for row in cells:
            table.add_row(*(row[i] for i in (0, *group)))
        console.print(table)


def _fitting(widths: Sequence[int], width: int) -> list[list[int]]:
    """Groups of the columns behind the first, each as wide as fits beside it."""
    groups: list[list[int]] = [[]]
    for i in range(1, len(widths)):
        used = widths[0] + sum(widths[other] + _GAP for other in groups[-1])
        if groups[-1] and used + widths[i] + _GAP > width:
            groups.append([])
        groups[-1].append(i)
    return groups
