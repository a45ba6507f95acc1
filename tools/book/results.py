"""Measurements that we keep: `results/*.json`, one file per claim, and tables made from them."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tiny_llm_lab.types import UserError
from tools.book.page import Page, markdown_table, without_generated

SCHEMA = 1

_INTRODUCTION = """# Results

One file for each claim, with its command, machine, date and the commit that recorded it. This page is
generated: `./pdmw run book` writes it from the JSON files here, and `book --check` refuses a stale one.
The numbers in parentheses are the lowest and the highest value, where a figure was measured more than once.
The machines were shared, so ratios say more than seconds. Answers were greedy where a result doesn't name
another sampling.
"""


@dataclass(frozen=True)
class Figure:
    """One number: a row (`case`) and a column (`what`) of the claim's table."""

    case: str
    what: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Judged:
    """What others claim, whether a lab confirms it, and what the lab measured."""

    text: str
    verdict: str
    measured: str


@dataclass(frozen=True)
class Result:
    """A claim and the figures that support it; from a lab also the claims that it judges."""

    name: str
    claim: str
    command: str
    machine: str
    date: str
    commit: str
    note: str
    figures: tuple[Figure, ...]
    claims: tuple[Judged, ...] = ()


def read_results(root: Path) -> dict[str, Result]:
    """All results of a repository by name. Raises UserError for a file that is not of this schema."""
    return {path.stem: _read(path) for path in sorted((root / "results").glob("*.json"))}


def results_page(results: dict[str, Result]) -> str:
    """The text of results/README.md."""
    return "\n".join([_INTRODUCTION, *map(_section, results.values())])


def asked_table(results: dict[str, Result], asked: str) -> str:
    """The table of `NAME; column; …`, without columns of all; `NAME; claims` is the table of verdicts.

    Raises UserError for a name or a column that does not exist.
    """
    name, *columns = [part.strip() for part in asked.split(";")]
    if name not in results:
        raise UserError(f"there is no result {name}: choose one of {', '.join(results)}")
    if columns == ["claims"]:
        return _claims_table(results[name])
    return results_table(results[name], columns, has_spread=False)


def _claims_table(result: Result) -> str:
    rows = [[each.text, each.verdict, each.measured] for each in result.claims]
    return markdown_table(["claim", "here", "measured"], ["---"] * 3, rows)


def results_table(result: Result, columns: Sequence[str] = (), *, has_spread: bool) -> str:
    """The figures of a result as a Markdown table, a row for each case."""
    known = list(dict.fromkeys(figure.what for figure in result.figures))
    for column in columns:
        if column not in known:
            raise UserError(f"results/{result.name}.json has no {column!r}: choose from {', '.join(known)}")
    columns = columns or known
    found = {(figure.case, figure.what): _cell(figure, has_spread) for figure in result.figures}
    cases = dict.fromkeys(figure.case for figure in result.figures)
    rows = [[case, *(found.get((case, column), "") for column in columns)] for case in cases]
    return markdown_table(["", *columns], ["---", *["--:"] * len(columns)], rows)


def _read(path: Path) -> Result:
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        if row.pop("schema") != SCHEMA:
            raise ValueError(f"the schema must be {SCHEMA}")
        figures = tuple(Figure(**figure) for figure in row.pop("figures"))
        claims = tuple(Judged(**claim) for claim in row.pop("claims", ()))
        return Result(path.stem, figures=figures, claims=claims, **row)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"results/{path.name} is not a result: {error}: copy the form of another file there"
        ) from error


def _section(result: Result) -> str:
    note = f"\n{result.note}\n" if result.note else ""
    claims = f"\n{_claims_table(result)}" if result.claims else ""
    return f"""## {result.name}

{result.claim}

`{result.command}`

{result.machine}. {result.date}, commit `{result.commit}`.
{note}
{results_table(result, has_spread=True)}{claims}"""


def _cell(figure: Figure, has_spread: bool) -> str:
    spread = ""
    if has_spread and figure.low is not None and figure.high is not None:
        spread = f" ({_number(figure.low)} to {_number(figure.high)})"
    return _number(figure.value) + spread


def _number(value: float) -> str:
    """Three digits, or all those before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{float(f'{value:.3g}'):g}"


_HEADER: Final = re.compile(r"^(?P<cells>\|.*\|)[ \t]*\n\|[ :|-]+\|[ \t]*$", re.MULTILINE)
_BY_HAND: Final = re.compile(r"<!-- by hand: \S.* -->\n\n?\Z")
# A time or a rate in a header's cell: "gap p95 ms", "TTFT, s", "output tok/s", "times faster".
_UNIT: Final = re.compile(
    r"(?:^|[ ,(/])(?:ms|µs|tok/s|tokens/s|req/s|GB/s|GFLOP/s|times (?!the\b)(?=\w))|^×(?: |$)|[ ,(]s\)?$"
)


def measured_problems(page: Page) -> Iterator[str]:
    """Tables with a time or a rate in their header that are outside of every mark."""
    text = without_generated(page.text)
    for match in _HEADER.finditer(text):
        cells = [cell.strip() for cell in match["cells"].strip("|").split("|")]
        found = next((cell for cell in cells if _UNIT.search(cell)), None)
        if found is not None and not _BY_HAND.search(text, 0, match.start()):
            line = text.count("\n", 0, match.start()) + 1
            yield (
                f"{page.name}:{line}: a table of measured numbers ({found}): move them to results/NAME.json "
                "and write <!-- results: NAME -->, or write <!-- by hand: REASON --> above it"
            )
