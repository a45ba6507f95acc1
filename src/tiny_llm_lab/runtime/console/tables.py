"""One table for all commands: no number and no header is ever cut, whatever the width.

    columns = [Column("budget", KEEP), Column("ITL\\np99 ms", 5), Column("text", KEEP, is_text=True)]
    print_table(columns, [["128", "12.5", "once upon a time"]])    # on stdout, at the terminal's width
    lines = table_lines(columns, rows, width=80)                   # the same as lines, for tests and files

A table that is too wide becomes narrower in this order:

1. Titles stack: a line break in a title is a space if there is room.
2. Text columns fold, down to 16 characters.
3. Columns are left out, the lowest priority first and of equal ones the last; a closing line names them.
   A column of priority KEEP stays.
4. If the columns that stay are too wide as well, each row becomes `title: value` lines; nothing is left out.

`print_parts` breaks a closing line of parts between them. Without a width, as in a pipe, nothing folds.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from tiny_llm_lab.runtime.console.talk import terminal_width, wrapped_lines

KEEP: Final = 100
_GAP: Final = 2
_BETWEEN: Final = " · "
_LEAST_TEXT: Final = 16
_PIPE_WIDTH: Final = 240  # for printing with rich: wide enough that no row breaks


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
    return [line.plain for line in _lines(columns, rows, width)]


def markdown_table(titles: Sequence[str], rows: Sequence[Cells]) -> str:
    """A Markdown table; columns are to the right, but for the first and those with words or links."""
    texts = {i for row in rows for i, cell in enumerate(row) if cell[:1].isalpha() or cell[:1] == "["} | {0}
    lines = [titles, ["---" if i in texts else "--:" for i in range(len(titles))], *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def stdout_console() -> Console:
    """Where tables go; rich leaves colour out off a terminal and under NO_COLOR."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)


def stdout_can_print(text: str) -> bool:
    """Whether stdout's encoding has all characters of `text`."""
    encoding = sys.stdout.encoding or "ascii"
    return text.encode(encoding, "replace").decode(encoding) == text


def print_table(columns: Sequence[Column], rows: Sequence[Cells], styles: Sequence[str] = ()) -> None:
    """The table on stdout; `styles` holds a rich style for each row, "" for none."""
    console = stdout_console()
    for line in _lines(columns, rows, terminal_width(), styles):
        console.print(line, soft_wrap=True)


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Lines of prose; on a terminal they break between words."""
    width = console.width if console.is_terminal else None
    for each in (part for line in lines for part in wrapped_lines(line, width)):
        console.print(each, highlight=False, markup=False, soft_wrap=True)


def print_parts(line: str) -> None:
    """A line of parts with " · " between them on stdout; on a narrow terminal it breaks between parts."""
    console = stdout_console()
    for each in part_lines(line, terminal_width()):
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


@dataclass(frozen=True)
class _Filled:
    """A column with its cells, one for each row."""

    column: Column
    title: str
    cells: Cells

    @property
    def natural(self) -> int:
        """The width at which nothing folds."""
        return max(map(cell_len, [*self.title.split("\n"), *self.cells]))

    @property
    def least(self) -> int:
        """The width that is needed: a text may fold, but not its title."""
        title = max(map(cell_len, self.title.split("\n")))
        return min(self.natural, max(_LEAST_TEXT, title)) if self.column.is_text else self.natural


def _lines(
    columns: Sequence[Column], rows: Sequence[Cells], width: int | None, styles: Sequence[str] = ()
) -> list[Text]:
    cells = [[row[idx] for row in rows] for idx in range(len(columns))]
    flat = [_Filled(column, column.title.replace("\n", " "), cells[i]) for i, column in enumerate(columns)]
    natural = [filled.natural for filled in flat]
    if width is None or _total(natural) <= width:
        return _grid(flat, natural, styles)
    shown = [_Filled(column, column.title, cells[idx]) for idx, column in enumerate(columns)]
    left_out: set[str] = set()
    while _total([filled.least for filled in shown]) > width:
        optional = [filled for filled in reversed(shown) if filled.column.priority < KEEP]
        if not optional:
            return _records(flat, width)
        dropped = min(optional, key=lambda filled: filled.column.priority)
        shown.remove(dropped)
        left_out.add(dropped.title)
    lines = _grid(shown, _fitted(shown, width), styles)
    if left_out:
        names = ", ".join(filled.title for filled in flat if filled.column.title in left_out)
        lines += _wrapped(f"left out at {width} columns: {names}", width)
    return lines


def _fitted(shown: Sequence[_Filled], width: int) -> list[int]:
    """Widths that add up to `width`, with text columns folded as far as that needs."""
    widths = [filled.natural for filled in shown]
    for idx, filled in enumerate(shown):
        excess = _total(widths) - width
        widths[idx] -= max(0, min(excess, filled.natural - filled.least))
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _grid(shown: Sequence[_Filled], widths: Sequence[int], styles: Sequence[str]) -> list[Text]:
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for filled, size in zip(shown, widths, strict=True):
        justify: JustifyMethod = "left" if filled.column.is_text or filled.column.is_left else "right"
        table.add_column(Text(filled.title), justify=justify, width=size, overflow="fold")
    for idx, row in enumerate(zip(*(filled.cells for filled in shown), strict=True)):
        table.add_row(*map(Text, row), style=styles[idx] if idx < len(styles) else None)
    return _rendered(table, _total(widths))


def _records(shown: Sequence[_Filled], width: int) -> list[Text]:
    """`title: value` lines, a blank line after each row; empty cells are not told."""
    lines: list[Text] = []
    for row in zip(*(filled.cells for filled in shown), strict=True):
        for filled, value in zip(shown, row, strict=True):
            lines += _wrapped(f"{filled.title}: {value}", width) if value else []
        lines.append(Text())
    return lines


def _wrapped(text: str, width: int) -> list[Text]:
    return _rendered(Text(text, overflow="fold"), width)


def _rendered(shown: Table | Text, width: int) -> list[Text]:
    """The lines of what rich makes of it, without the blanks at their ends."""
    lines = [
        Text.assemble(*((segment.text, segment.style or "") for segment in line))
        for line in Console(width=width).render_lines(shown, pad=False)
    ]
    for line in lines:
        line.rstrip()
    return lines
