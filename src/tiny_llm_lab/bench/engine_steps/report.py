"""What an experiment found: a table, ratios with their aims, and what is to be said of them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich import box
from rich.table import Table

from .turns import Ratio


@dataclass(frozen=True)
class Report:
    """One experiment. The cells of `rows` are for reading; `data` has the numbers they are made of."""

    experiment: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    ratios: Sequence[Ratio] = ()
    notes: Sequence[str] = ()
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Everything but the table, which `data` repeats in numbers."""
        ratios = [asdict(each) | {"is_met": each.is_met} for each in self.ratios]
        return {
            "experiment": self.experiment,
            "title": self.title,
            "ratios": ratios,
            "notes": list(self.notes),
            "data": self.data,
        }


def table_of(report: Report, plain: bool) -> Table:
    """The first column is text, the others are numbers."""
    table = Table(box=None if plain else box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(report.columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in report.rows:
        table.add_row(*row)
    return table


def lines_below(report: Report) -> list[str]:
    """The ratios, one a line, then the notes."""
    return [*map(_ratio_line, report.ratios), *report.notes]


def _ratio_line(ratio: Ratio) -> str:
    aims = [
        f"{sign} {limit:g}"
        for sign, limit in (("at most", ratio.at_most), ("at least", ratio.at_least))
        if limit is not None
    ]
    aim = f", aim {' and '.join(aims)}: {'met' if ratio.is_met else 'MISSED'}" if aims else ""
    # A ratio of a single pair has no spread.
    spread = "" if ratio.low == ratio.high else f" ({ratio.low:.3f} to {ratio.high:.3f})"
    return f"{ratio.name}: {ratio.value:.3f}{spread}{aim}"
