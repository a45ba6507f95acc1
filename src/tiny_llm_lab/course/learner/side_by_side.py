"""Two texts beside each other, or one below the other where the terminal is narrow."""

import difflib
from collections.abc import Iterator
from itertools import zip_longest
from typing import Final

from rich.console import Group, RenderableType
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from tiny_llm_lab.runtime.console.wrapping import wrapped_lines

# Two columns in which most lines of code do not break.
_LEAST_WIDTH: Final = 130
_BOTH, _CHANGED, _MINE, _REFERENCE = " ", "|", "<", ">"
_STYLES: Final = {_BOTH: "", _CHANGED: "bold yellow", _MINE: "bold red", _REFERENCE: "bold green"}


def shown_diff(mine: str, reference: str, language: str, width: int) -> RenderableType:
    """Both texts, coloured as code of `language`; side by side if `width` is at least 130 characters."""
    if width < _LEAST_WIDTH or not mine or not reference:
        return Group(*_unified(mine, reference, width))
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(ratio=1, overflow="fold")
    table.add_column(width=1)
    table.add_column(ratio=1, overflow="fold")
    left, right = _coloured(mine, language), _coloured(reference, language)
    for mark, i, j in _pairs(mine.splitlines(), reference.splitlines()):
        ours, theirs = "" if i is None else left[i], "" if j is None else right[j]
        table.add_row(ours, Text(mark, _STYLES[mark]), theirs)
    return table


def _pairs(mine: list[str], reference: list[str]) -> Iterator[tuple[str, int | None, int | None]]:
    """Line numbers of both sides that belong on one row, and how they differ."""
    matcher = difflib.SequenceMatcher(None, mine, reference, autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        for i, j in zip_longest(range(a, b), range(c, d)):
            both = _BOTH if kind == "equal" else _CHANGED
            yield (both if i is not None and j is not None else _REFERENCE if i is None else _MINE), i, j


def _unified(mine: str, reference: str, width: int) -> Iterator[Text]:
    """All lines: "-" and "+" before those that only one side has; what is too wide goes on below it."""
    styles = {"-": "red", "+": "green", " ": ""}
    for line in difflib.ndiff(mine.splitlines(), reference.splitlines()):
        if line[0] != "?":  # a line of ndiff that points at characters
            below = " " * (len(line) - len(line[1:].lstrip()) + 4)
            for part in wrapped_lines(f"{line[0]} {line[2:]}", width, below):
                yield Text(part, styles[line[0]])


def _coloured(code: str, language: str) -> list[Text]:
    syntax = Syntax("", language, theme="ansi_dark", background_color="default")
    return list(syntax.highlight(code).split("\n"))
