"""`lab merge`: what one lab has measured on several machines, a row for each of them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from tiny_llm_lab.measure.bench.report import Column, Row, Section
from tiny_llm_lab.measure.ink import color_of, save_figure
from tiny_llm_lab.runtime.console.input_file import read_text
from tiny_llm_lab.types import UserError


def merged(folders: Sequence[Path], metric: str | None) -> Section:
    """A row for each folder's machine and model, and a column for each variant of its lab.

    `metric` is the title of a column of that lab's table, None the first. Raises UserError for folders of
    several labs, for a metric that they lack, and for a folder without a result.
    """
    texts = [read_text(str(each / "result.json"), "name folders that `lab` wrote") for each in folders]
    try:
        found = [json.loads(text) for text in texts]
        labs = {each["lab"] for each in found}
        columns = {column["title"]: column for each in found for column in each["section"]["columns"]}
    except (ValueError, KeyError, TypeError):
        raise UserError("a result.json was not written by `lab`: name folders that it wrote") from None
    title = metric or next(iter(columns), "")
    if len(labs) != 1 or title not in columns:
        have = f"of {', '.join(sorted(labs)) or 'none'}, with the columns {', '.join(columns)}"
        raise UserError(f"these are results {have}: merge folders of one lab, by one of its columns")
    shown, rows = Column(**columns[title]), list[Row]()
    for each in found:
        host, variants = each["host"], each["section"]["rows"]
        samples = {row["name"]: row["metrics"].get(shown.key, {}).get("samples", []) for row in variants}
        rows.append(Row(f"{host['cpu']}, {host['cores']} cores, {each['settings']['model']}", samples))
    names = dict.fromkeys(name for row in rows for name in row.samples)
    given = [replace(shown, key=name, title=name) for name in names]
    return Section("merge", f"{labs.pop()}: {title}, a row for each machine", given, rows)


def draw(section: Section, path: Path) -> None:
    """The medians over the machines, on a log scale: a line for each variant."""
    figure = Figure(figsize=(10.0, 4.6), layout="constrained")
    axes = figure.subplots()
    for column in section.columns:
        known = [row for row in section.rows if any(row.samples.get(column.key, ()))]
        medians = [row.median(column.key) * column.scale for row in known]
        axes.plot([row.name for row in known], medians, "o-", color=color_of(column.key), label=column.title)
    axes.set(yscale="log", title=section.title)
    axes.legend()
    save_figure(figure, path)
