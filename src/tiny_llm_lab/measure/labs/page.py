"""One HTML page of lab results: self-contained, for light and dark, for a phone as well."""

import base64
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from tiny_llm_lab.measure.bench.report import Section
from tiny_llm_lab.measure.labs.result import Claim, LabResult

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2530; --soft: #5a6675; --ground: #fff; --line: #d8dee6;
  --good: #24702a; --bad: #a8231c; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #dfe5ec; --soft: #97a3b1; --ground: #14181d; --line: #343c46; --good: #74c77a;
    --bad: #ef8a82; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; background: var(--ground); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { margin-top: 2.5rem; font-size: 1.25rem; }
section { border-top: 1px solid var(--line); }
p { max-width: 45rem; } .soft, figcaption { color: var(--soft); font-size: .875rem; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .75rem .25rem 0; text-align: right; vertical-align: top;
  border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child, .claims td, .claims th { text-align: left; }
.claims td { white-space: normal; min-width: 6rem; }
figure { margin: 1rem 0; } img { max-width: 100%; height: auto; border-radius: 6px; background: #fff; }
.confirmed { color: var(--good); } .refuted, .problem { color: var(--bad); font-weight: 600; }
nav a { margin-right: .75rem; } a { color: inherit; }
"""


def page_of(title: str, about: str, results: Sequence[tuple[LabResult, Path]]) -> str:
    """The page; each result comes with the PNG of its figure."""
    links = " ".join(f'<a href="#{escape(each.name)}">{escape(each.name)}</a>' for each, _ in results)
    body = "\n".join(block for result, figure in results for block in _lab(result, figure))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n"
        f'<h1>{escape(title)}</h1>\n<p class="soft">{escape(about)}</p>\n<nav>{links}</nav>\n'
        f"{''.join(_verdicts(results))}{body}\n</body></html>\n"
    )


def _verdicts(results: Sequence[tuple[LabResult, Path]]) -> Iterator[str]:
    """Every claim and its verdict, when there are several labs."""
    if len(results) > 1:
        yield '<div class="scroll"><table class="claims"><tr><th>lab</th><th>claim</th><th></th></tr>'
        for result, _ in results:
            link = f'<td><a href="#{escape(result.name)}">{escape(result.name)}</a></td>'
            yield from (f"<tr>{link}{_judged(each)}</tr>" for each in result.finding.claims)
        yield "</table></div>"


def _lab(result: LabResult, figure: Path) -> Iterator[str]:
    name, finding = escape(result.name), result.finding
    yield f'<section id="{name}"><h2>{name}: {escape(result.question)}</h2>'
    if finding.problem:
        yield f'<p class="problem">Invalid: {escape(finding.problem)}</p>'
    yield f"<p>{' '.join(map(escape, finding.conclusion))}</p>"
    data = base64.b64encode(figure.read_bytes()).decode()
    yield f'<figure><img alt="Figure of {name}" src="data:image/png;base64,{data}">'
    yield f"<figcaption>{escape(result.section.title)}</figcaption></figure>"
    yield from _table(result.section)
    notes = (*result.section.notes, *(f"Skipped: {each}" for each in result.skipped))
    yield from (f'<p class="soft">{escape(note)}</p>' for note in notes)
    yield from _claims(finding.claims)
    yield "</section>"


def _table(section: Section) -> Iterator[str]:
    titles = "".join(f"<th>{escape(column.title)}</th>" for column in section.columns)
    yield f'<div class="scroll"><table><tr><th></th>{titles}</tr>'
    for row in section.rows:
        cells = (column.cell(row.samples.get(column.key, ())) for column in section.columns)
        yield f"<tr><td>{escape(row.name)}</td>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
    yield "</table></div>"


def _claims(claims: Sequence[Claim]) -> Iterator[str]:
    if claims:
        yield '<div class="scroll"><table class="claims">'
        yield "<tr><th>claim</th><th></th><th>measured here</th></tr>"
        for each in claims:
            yield f"<tr>{_judged(each)}<td>{escape(each.measured)}</td></tr>"
        yield "</table></div>"


def _judged(claim: Claim) -> str:
    kind = "soft" if claim.verdict == "not measurable" else claim.verdict
    return f"<td>{escape(claim.text)}</td><td class={kind}>{claim.verdict}</td>"
