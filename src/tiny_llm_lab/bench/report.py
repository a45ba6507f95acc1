"""What every benchmark reports: rows of samples, ratios, notes; one JSON schema and one kind of table."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Final, Literal

from rich.console import Console

from tiny_llm_lab.commands import tables
from tiny_llm_lab.interleave import interleave

SCHEMA: Final = 1

Samples = Sequence[float | None]  # one for each round; None where there was nothing to measure
Metrics = Mapping[str, float | None]  # of one run, by name


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
    def of(
        cls,
        name: str,
        over: Samples,
        under: Samples,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> "Ratio | None":
        """`over` / `under`, paired by round; None where a sample is missing or the divisor is 0."""
        pairs = [(a, b) for a, b in zip(over, under, strict=True) if a is not None and b]
        if not pairs or len(pairs) < len(over):
            return None
        each = [a / b for a, b in pairs]
        value = median(a for a, _ in pairs) / median(b for _, b in pairs)
        return cls(name, value, min(each), max(each), at_most, at_least)

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


@dataclass(frozen=True)
class Versus:
    """A ratio to report: its name, the names of the two variants, and the aims of `Ratio`."""

    name: str
    over: str
    under: str
    at_most: float | None = None
    at_least: float | None = None


def timed_section(
    name: str,
    title: str,
    seconds: Mapping[str, Sequence[float]],
    ratios: Iterable[Versus],
    notes: Sequence[str] = (),
    **data: Any,
) -> Section:
    """A comparison of times, as `time_variants` returns them."""
    rows = [Row(variant, {TIME.key: values}) for variant, values in seconds.items()]
    found = [
        Ratio.of(each.name, seconds[each.over], seconds[each.under], each.at_most, each.at_least)
        for each in ratios
    ]
    return Section(name, title, (TIME,), rows, found, notes, data)


def measured_rows(variants: Mapping[str, Callable[[], Metrics]], rounds: int) -> list[Row]:
    """A row for each variant, measured once a round, interleaved."""
    runs: dict[str, list[Metrics]] = {name: [] for name in variants}
    for _, name in interleave(list(variants), rounds):
        runs[name].append(variants[name]())
    return [Row(name, samples_of(each)) for name, each in runs.items()]


def samples_of(runs: Iterable[Metrics]) -> dict[str, Samples]:
    """By metric, one sample of every run."""
    each = list(runs)
    return {key: [run[key] for run in each] for key in each[0]}


class Report:
    """What a benchmark says on stdout: its sections as they are measured, or one line of JSON at the end."""

    def __init__(self, is_json: bool) -> None:
        self._is_json, self._sections = is_json, list[Section]()

    def add(self, section: Section) -> None:
        """Print a section, unless there is to be JSON."""
        self._sections.append(section)
        if not self._is_json:
            console = tables.stdout_console()
            print_section(console, section)
            console.print()

    def end(self, benchmark: str, settings: Mapping[str, Any], host: Mapping[str, Any], **more: Any) -> None:
        """Print the JSON, if it is wanted."""
        if self._is_json:
            print(json.dumps(document(benchmark, settings, host, self._sections, **more)))


def document(
    benchmark: str,
    settings: Mapping[str, Any],
    host: Mapping[str, Any],
    sections: Sequence[Section] = (),
    **more: Any,
) -> dict[str, Any]:
    """The JSON object that a benchmark prints or writes; `more` are top-level keys of its own."""
    head = {"schema": SCHEMA, "benchmark": benchmark, "settings": dict(settings), "host": dict(host)}
    return {**head, "sections": [section.to_json() for section in sections], **more}


def print_section(console: Console, section: Section) -> None:
    """Title, table, ratios and notes; a table that is too wide is cut between columns, never in a number."""
    ratios = [ratio.line() for ratio in section.ratios if ratio]
    for line in (section.title, *table_lines(section, console.width), *ratios, *section.notes):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def table_lines(section: Section, width: int) -> Iterator[str]:
    """The table, in parts below each other, each with the variants' names, where it would be too wide."""
    name, rest = tables.Column("variant", is_left=True), list(section.columns)
    while rest:
        for count in range(len(rest), 0, -1):
            titles = [name, *(tables.Column(column.title) for column in rest[:count])]
            cells = [line for row in section.rows for line in _cells(row, rest[:count])]
            lines = tables.table_lines(titles, cells, width=None)
            if max(map(len, lines)) <= width:
                break
        yield from lines
        rest = rest[count:]


def _cells(row: Row, columns: Sequence[Column]) -> Iterator[list[str]]:
    """The row, and below it the spreads that have a line of their own."""
    cells = [column.cell(row.samples.get(column.key, ())).split("\n") for column in columns]
    for line in range(max(map(len, cells))):
        yield [row.name if line == 0 else "", *(cell[line] if line < len(cell) else "" for cell in cells)]
