"""What every benchmark reports: rows of samples, ratios, notes; one JSON schema and one kind of table."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Final

from rich.console import Console

from tiny_llm_lab.measure.bench.host import busy_note
from tiny_llm_lab.runtime.console import tables

SCHEMA: Final = 1

Samples = Sequence[float | None]  # one for each round; None where there was nothing to measure
Metrics = Mapping[str, float | None]  # of one run, by name


@dataclass(frozen=True)
class Column:
    """How a metric is shown: the median of its samples times `scale`, with their spread if they have one."""

    key: str
    title: str
    spec: str = ".1f"
    scale: float = 1.0
    has_spread: bool = False
    unit: str = ""

    def cell(self, samples: Samples) -> str:
        """The text of one cell; empty without samples, "-" when one is None."""
        known = [value * self.scale for value in samples if value is not None]
        if len(known) < len(samples):
            return "-"
        if not known:
            return ""
        low, middle, high = (format(value, self.spec) for value in (min(known), median(known), max(known)))
        spread = f" ({low}-{high})" if self.has_spread and low != high else ""
        return middle + self.unit + spread


TIME: Final = Column("seconds", "ms median (min-max)", ".3f", 1e3, has_spread=True)


@dataclass(frozen=True)
class Row:
    """One variant, and its samples of each metric."""

    name: str
    samples: Mapping[str, Samples]

    @classmethod
    def of_runs(cls, name: str, runs: Iterable[Metrics]) -> "Row":
        """One sample of every run."""
        each = list(runs)
        return cls(name, {key: [run[key] for run in each] for key in each[0]})

    def is_whole(self, key: str) -> bool:
        """Whether every round has measured a metric."""
        return None not in self.samples[key]

    def median(self, key: str) -> float:
        """The median of a metric, of the rounds that have measured it."""
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
class Aim:
    """The bounds that a ratio should keep; None: there is none."""

    at_most: float | None = None
    at_least: float | None = None


NO_AIM: Final = Aim()


@dataclass(frozen=True)
class Ratio:
    """How one variant compares with another: the ratio of medians, and the least and largest of a round."""

    name: str
    value: float
    low: float
    high: float
    aim: Aim = NO_AIM

    @classmethod
    def of(cls, name: str, over: Samples, under: Samples, aim: Aim = NO_AIM) -> "Ratio | None":
        """`over` / `under`, paired by round; None where a sample is missing or the divisor is 0."""
        pairs = [(a, b) for a, b in zip(over, under, strict=True) if a is not None and b]
        if not pairs or len(pairs) < len(over):
            return None
        each = [a / b for a, b in pairs]
        value = median(a for a, _ in pairs) / median(b for _, b in pairs)
        return cls(name, value, min(each), max(each), aim)

    @property
    def is_met(self) -> bool | None:
        """Whether the aim is met; None when there is none."""
        if self.aim == NO_AIM:
            return None
        is_low_enough = self.aim.at_most is None or self.value <= self.aim.at_most
        return is_low_enough and (self.aim.at_least is None or self.value >= self.aim.at_least)

    def line(self) -> str:
        """The ratio as one line of text."""
        limits = [f"{key.replace('_', ' ')} {value:g}" for key, value in asdict(self.aim).items() if value]
        aim = f", aim {' and '.join(limits)}: {'met' if self.is_met else 'MISSED'}" if limits else ""
        # A ratio of a single pair has no spread.
        spread = "" if self.low == self.high else f" ({self.low:.3f} to {self.high:.3f})"
        return f"{self.name}: {self.value:.3f}{spread}{aim}"

    def to_json(self) -> dict[str, Any]:
        """Flat, the aims next to the numbers."""
        numbers = {"name": self.name, "value": self.value, "low": self.low, "high": self.high}
        return numbers | asdict(self.aim) | {"is_met": self.is_met}


def ratios_of(over: Row, under: Row, columns: Iterable[Column]) -> list[Ratio | None]:
    """How one row compares with another in each of these columns."""
    return [
        Ratio.of(
            f"{each.title.removesuffix(' ms')}, {over.name} / {under.name}",
            over.samples[each.key],
            under.samples[each.key],
        )
        for each in columns
    ]


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
            "columns": [asdict(column) for column in self.columns],
            "rows": [row.to_json() for row in self.rows],
            "ratios": [ratio.to_json() for ratio in self.ratios if ratio],
            "notes": list(self.notes),
            "data": dict(self.data),
        }


class Report:
    """What a benchmark says on stdout: its sections as they are measured, or one line of JSON at the end."""

    def __init__(self, is_json: bool) -> None:
        self._is_json, self._sections = is_json, list[Section]()

    def keep(self, section: Section) -> None:
        """Have a section in the JSON, and print nothing."""
        self._sections.append(section)

    def add(self, section: Section) -> None:
        """Print a section, unless the output is JSON."""
        self.keep(section)
        if not self._is_json:
            console = tables.stdout_console()
            print_section(console, section)
            console.print()

    def end(
        self, benchmark: str, settings: Mapping[str, Any], host: Mapping[str, Any], **more: Any
    ) -> dict[str, Any]:
        """The JSON object, printed if it is wanted; `more` are top-level keys of its own."""
        result = {
            "schema": SCHEMA,
            "benchmark": benchmark,
            "settings": dict(settings),
            "host": dict(host),
            "sections": [section.to_json() for section in self._sections],
            **more,
        }
        if self._is_json:
            print(json.dumps(result))
        elif note := busy_note(host):
            tables.print_lines(tables.stdout_console(), [note])
        return result


def print_section(console: Console, section: Section) -> None:
    """Title, table, ratios and notes; a table that is too wide is cut between columns, never in a number."""
    ratios = [ratio.line() for ratio in section.ratios if ratio]
    lines = (section.title, *table_lines(section, console.width), *ratios, *section.notes)
    tables.print_lines(console, lines)


def table_lines(section: Section, width: int) -> Iterator[str]:
    """The table, in parts below each other, each with the variants' names, where it would be too wide."""
    name, rest = tables.Column("variant", is_left=True), list(section.columns)
    while rest:
        for count in range(len(rest), 0, -1):
            titles = [name, *(tables.Column(column.title) for column in rest[:count])]
            cells = [
                [row.name, *(column.cell(row.samples.get(column.key, ())) for column in rest[:count])]
                for row in section.rows
            ]
            lines = tables.table_lines(titles, cells, width=None)
            if max(map(len, lines)) <= width:
                break
        yield from lines
        rest = rest[count:]
