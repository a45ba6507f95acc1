"""One table for all commands: no number and no header is ever cut, whatever the width.

    columns = [Column("budget", KEEP), Column("ITL\\np99 ms", 5), Column("text", KEEP, is_text=True)]
    print_table(columns, [["128", "12.5", "once upon a time"]])    # on stdout, at the terminal's width
    lines = table_lines(columns, rows, width=80)                   # the same as lines, for tests and files

A table that is too wide becomes narrower in this order:

1. Titles stack: a line break in a title is a space where there is room.
2. Text columns fold, down to 16 characters.
3. Columns are left out, the lowest priority first and of equal ones the last; a closing line names them.
   A column of priority KEEP stays.
4. If the columns that stay are too wide as well, each row becomes `title: value` lines; nothing is left out.

`print_parts` breaks a closing line of parts between them. Without a width, as in a pipe, nothing folds.
"""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

KEEP: Final = 100
_GAP: Final = "  "
_BETWEEN: Final = " · "
_LEAST_TEXT: Final = 16
_PIPE_WIDTH: Final = 240  # for those who print with rich: wide enough that no row breaks


@dataclass(frozen=True)
class Column:
    """A title, how long the column stays when room runs out, and whether its cells are text or numbers.

    Numbers are set to the right. `is_left` sets short names to the left; `is_text` does, and may fold.
    """

    title: str
    priority: int = 0
    is_text: bool = False
    is_left: bool = False


Cells = Sequence[str]


def table_lines(columns: Sequence[Column], rows: Sequence[Cells], width: int | None) -> list[str]:
    """The table as lines of at most `width` characters; None is as wide as needed."""
    return [line for block in _blocks(columns, rows, width) for line in block]


def stdout_console() -> Console:
    """Where tables go; rich leaves colour out off a terminal and under NO_COLOR."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)


def stdout_width() -> int | None:
    """The terminal's width; None where stdout is none."""
    console = Console()
    return console.width if console.is_terminal else None


def print_table(columns: Sequence[Column], rows: Sequence[Cells], styles: Sequence[str] = ()) -> None:
    """The table on stdout; `styles` holds a rich style for each row, "" for none."""
    console = stdout_console()
    blocks = _blocks(columns, rows, stdout_width())
    of_block = ["bold", *styles, *[""] * len(blocks)]
    for block, style in zip(blocks, of_block, strict=False):
        for line in block:
            console.print(Text(line, style), soft_wrap=True)


def print_parts(line: str) -> None:
    """A line of parts with " · " between them on stdout; on a narrow terminal it breaks between parts."""
    console = stdout_console()
    for each in part_lines(line, stdout_width()):
        console.print(Text(each), soft_wrap=True)


def part_lines(line: str, width: int | None) -> list[str]:
    """The parts of `line` on as few lines of `width` characters as they need; a part is never broken."""
    lines: list[str] = []
    for part in line.split(_BETWEEN):
        joined = f"{lines[-1]}{_BETWEEN}{part}" if lines else part
        if lines and (width is None or cell_len(joined) <= width):
            lines[-1] = joined
        else:
            lines.append(part)
    return lines


def _blocks(columns: Sequence[Column], rows: Sequence[Cells], width: int | None) -> list[list[str]]:
    """The lines of the header, of each row, and of the note on what is left out."""
    flat = [" ".join(column.title.split("\n")) for column in columns]
    shown = list(range(len(columns)))
    if width is None or sum(_natural(flat, rows, shown)) + len(_GAP) * (len(shown) - 1) <= width:
        return _grid(columns, flat, rows, shown, _natural(flat, rows, shown))
    stacked = [column.title for column in columns]
    while (widths := _fitted(columns, stacked, rows, shown, width)) is None:
        optional = [idx for idx in shown if columns[idx].priority < KEEP]
        if not optional:
            return _records(flat, rows, width)
        shown.remove(min(optional, key=lambda idx: (columns[idx].priority, -idx)))
    left_out = [title for idx, title in enumerate(flat) if idx not in shown]
    note = textwrap.wrap(f"left out at {width} columns: {', '.join(left_out)}", width) if left_out else []
    return [*_grid(columns, stacked, rows, shown, widths), note]


def _natural(titles: Sequence[str], rows: Sequence[Cells], shown: Sequence[int]) -> list[int]:
    """The width at which nothing folds, for each of the `shown` columns."""
    return [max(_width_of(titles[idx]), *(cell_len(row[idx]) for row in rows), 0) for idx in shown]


def _fitted(
    columns: Sequence[Column], titles: Sequence[str], rows: Sequence[Cells], shown: Sequence[int], width: int
) -> list[int] | None:
    """Widths that fit into `width`, with text columns folded as far as that needs; None when none do."""
    widths = _natural(titles, rows, shown)
    excess = sum(widths) + len(_GAP) * (len(shown) - 1) - width
    for place, idx in enumerate(shown):
        if columns[idx].is_text and excess > 0:
            least = max(_LEAST_TEXT, _width_of(titles[idx]))
            given = max(0, min(excess, widths[place] - least))
            widths[place] -= given
            excess -= given
    return widths if excess <= 0 else None


def _grid(
    columns: Sequence[Column],
    titles: Sequence[str],
    rows: Sequence[Cells],
    shown: Sequence[int],
    widths: Sequence[int],
) -> list[list[str]]:
    heads = [titles[idx].split("\n") for idx in shown]
    height = max(map(len, heads), default=0)
    cells = [[*[""] * (height - len(head)), *head] for head in heads]  # titles stand on the rule
    blocks = [_lines(columns, shown, widths, cells)]
    for row in rows:
        cells = [list(_folded(row[idx], size)) for idx, size in zip(shown, widths, strict=True)]
        blocks.append(_lines(columns, shown, widths, cells))
    return blocks


def _lines(
    columns: Sequence[Column], shown: Sequence[int], widths: Sequence[int], cells: Sequence[Sequence[str]]
) -> list[str]:
    """Cells of one or more lines each, side by side."""
    lines = []
    for number in range(max(map(len, cells), default=0)):
        parts = []
        for idx, size, cell in zip(shown, widths, cells, strict=True):
            text = cell[number] if number < len(cell) else ""
            room = " " * (size - cell_len(text))
            parts.append(text + room if columns[idx].is_text or columns[idx].is_left else room + text)
        lines.append(_GAP.join(parts).rstrip())
    return lines


def _records(titles: Sequence[str], rows: Sequence[Cells], width: int) -> list[list[str]]:
    """`title: value` lines, a blank line after each row; empty cells are not told."""
    blocks: list[list[str]] = [[]]
    for row in rows:
        block = []
        for title, value in zip(titles, row, strict=True):
            if value:
                block += list(_folded(f"{title}: {value}", width))
        blocks.append([*block, ""])
    return blocks


def _folded(text: str, width: int) -> Iterator[str]:
    """Lines of at most `width` cells, broken between words where that is possible."""
    if cell_len(text) <= width:
        yield text  # with all its blanks
        return
    line = ""
    for word in text.split(" "):
        joined = f"{line} {word}" if line else word
        if cell_len(joined) <= width:
            line = joined
            continue
        if line:
            yield line
        *full, line = chop_cells(word, width) or [""]
        yield from full
    yield line


def _width_of(title: str) -> int:
    return max(map(cell_len, title.split("\n")))
