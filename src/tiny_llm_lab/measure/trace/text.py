"""A timeline in the terminal: a line for each request, a column for each step."""

import sys
from collections.abc import Iterator
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from tiny_llm_lab.measure.trace.timeline import Cell, Timeline, short_name
from tiny_llm_lab.runtime.console.tables import KEEP, Column, print_table, stdout_can_print
from tiny_llm_lab.runtime.console.talk import plural
from tiny_llm_lab.runtime.metrics import percentile

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
# One sign for one sign, where stdout has no others.
_ASCII: Final = str.maketrans("▁▂▃▄▅▆▇█·┄↓…", "_,:;=*%#.-v~")
_NOTE_ASCII: Final = str.maketrans({"⌈": "ceil(", "⌉": ")", "−": "-", "·": "*"})
_STYLES: Final = {"prefill": "blue", "decode": "green", "waiting": "dim"}
_BAR_ROWS: Final = 4
_WIDEST: Final = 160
REQUEST_COLUMNS: Final = (
    Column("request", KEEP, is_left=True),
    *(Column(title, KEEP) for title in ("arrives", "prompt", "answer", "TTFT", "cost\np50", "p99", "max")),
)


def print_timeline(timeline: Timeline, title: str, note: str = "") -> None:
    """On stdout: the picture in bands as wide as the terminal, its legend, a table of requests, a note."""
    console = Console(width=None if sys.stdout.isatty() else _WIDEST)
    is_plain = not stdout_can_print(f"{_BLOCKS}·┄↓⌈−")
    for line in timeline_lines(timeline, title, min(console.width, _WIDEST)):
        line.plain = line.plain.translate(_ASCII) if is_plain else line.plain
        console.print(line, overflow="fold")
    console.print()
    print_table(REQUEST_COLUMNS, request_rows(timeline))
    if note:
        console.print(Text(f"\n{note.translate(_NOTE_ASCII) if is_plain else note}"))


def timeline_lines(timeline: Timeline, title: str, width: int) -> Iterator[Text]:
    """The picture and its legend, in lines of at most `width` columns."""
    rows = list(_rows(timeline))
    label = max(cell_len(name) for name, _ in rows) + 1
    # Tens: every band begins with a number.
    num_columns = max(10, (width - label) // 10 * 10)
    yield Text(title, "bold")
    for first in range(0, len(timeline.steps), num_columns):
        band = slice(first, first + num_columns)
        yield Text("")
        for name, row in rows:
            line = row[band]
            line.rstrip()
            yield Text(set_cell_size(name, label - 1) + " ") + line
    yield Text("")
    yield _legend(timeline)
    yield Text(
        f"{plural(len(timeline.steps), 'step')} · {plural(sum(timeline.totals))} computed · "
        f"largest step {max(timeline.totals)} of {timeline.budget}"
    )
    yield Text("TTFT in steps · cost = all tokens of a step that returns a token after the first", "dim")


def request_rows(timeline: Timeline) -> list[list[str]]:
    """One row per request: its sizes, its TTFT in steps, and the costs of its other tokens."""
    rows = []
    for request in timeline.requests:
        costs = timeline.decode_costs(request)
        spread = [percentile(costs, p) for p in (50, 99, 100)] if costs else ["", "", ""]
        sizes = (request.arrival_step, request.prompt_len, request.max_tokens)
        row = [short_name(request.name), *sizes, timeline.ttft_steps(request), *spread]
        rows.append(list(map(str, row)))
    return rows


def _rows(timeline: Timeline) -> Iterator[tuple[str, Text]]:
    """(name, one character a step) of every line, top to bottom."""
    num_steps = len(timeline.steps)
    numbers = "".join(f"{step:<10}" for step in range(0, num_steps, 10))
    yield "step", Text(numbers[: num_steps + len(str(num_steps))], "dim")
    for request in timeline.requests:
        row = Text(" " * request.arrival_step)
        for cell in timeline.cells(request):
            row.append(_glyph(cell, timeline.largest_chunk), _STYLES[cell.kind])
        yield short_name(request.name), row
    yield from _bars(timeline)
    width = len(str(max(timeline.totals)))
    digits = [f"{total:>{width}}" for total in timeline.totals]
    for place in range(width):
        yield ("sum ↓" if place == 0 else ""), Text("".join(number[place] for number in digits))


def _bars(timeline: Timeline) -> Iterator[tuple[str, Text]]:
    """The totals as bars, the budget as the line on which the highest possible bar ends."""
    top, line = timeline.top, f"{timeline.top} ".ljust(len(timeline.totals), "┄")
    yield ("budget", Text(line, "red")) if timeline.shows_budget else ("", Text(""))
    for row in reversed(range(_BAR_ROWS)):
        # In eighths of a row; a step that computes anything shows.
        eighths = [-(-total * 8 * _BAR_ROWS // top) - 8 * row for total in timeline.totals]
        yield "", Text("".join(_BLOCKS[min(8, max(0, height))] for height in eighths))


def _glyph(cell: Cell, largest: int) -> str:
    if cell.kind == "waiting":
        return "·"
    if cell.kind == "decode":
        return str(cell.num_tokens) if cell.num_tokens < 10 else "+"
    return _BLOCKS[-(-cell.num_tokens * 8 // largest)]


def _legend(timeline: Timeline) -> Text:
    signs = {"prefill": "▁▄█", "decode": "1", "waiting": "·"}
    names = {"prefill": f"prefill, █ = {timeline.largest_chunk}", "decode": "decode", "waiting": "waiting"}
    parts = [Text.assemble((signs[kind], _STYLES[kind]), f" {name}") for kind, name in names.items()]
    if not timeline.shows_budget:
        parts.append(Text(f"budget {timeline.budget} is above the picture"))
    return Text("   ").join(parts)
