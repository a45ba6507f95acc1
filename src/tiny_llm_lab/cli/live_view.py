"""Shows a running batch: a table that redraws itself on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console, Group, JustifyMethod
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tiny_llm_lab.cli.progress import BatchProgress, RequestProgress
from tiny_llm_lab.runtime.console.talk import log, plural
from tiny_llm_lab.types import DoneEvent, Event, PrefillEvent

Show = Callable[[Event, RequestProgress], None]
Cell = str | Text | ProgressBar

_REDRAW_EVERY_S: Final = 0.1
_BAR_WIDTH: Final = 16
_COLUMNS_BEFORE_TEXT: Final = 62
_WIDTH_WITH_TEXT: Final = _COLUMNS_BEFORE_TEXT + 12
_WIDTH_WITH_BAR: Final = 60
# Titles, and how a column is set; the bar has no title.
_COLUMNS: Final[tuple[tuple[str, JustifyMethod], ...]] = (
    ("slot", "right"),
    ("prompt", "right"),
    ("phase", "left"),
    ("", "left"),
    ("tokens", "right"),
    ("tok/s", "right"),
    ("text", "left"),
)


@contextmanager
def live_view(progress: BatchProgress) -> Iterator[Show]:
    """What to call with each event: a live table on a terminal that can redraw, lines otherwise."""
    console = Console(stderr=True)
    if not console.is_interactive:
        yield _line_view()
        return
    # We redraw on events, without a thread, so that the view disturbs the timing less.
    with Live(console=console, auto_refresh=False, transient=True) as live:
        drawn_s = 0.0

        def show(event: Event, request: RequestProgress) -> None:
            nonlocal drawn_s
            now_s = time.perf_counter()
            if now_s - drawn_s >= _REDRAW_EVERY_S:
                drawn_s = now_s
                live.update(render(progress, now_s, console.width), refresh=True)

        yield show


def _line_view() -> Show:
    """One line on stderr when a request starts, is prefilled and ends."""
    started = set[int]()

    def show(event: Event, request: RequestProgress) -> None:
        if isinstance(event, DoneEvent):
            done = event.completion
            message = done.error or f"{done.finish_reason}, {plural(len(done.token_ids))}"
            log(f"{done.prompt_idx}: done: {message}")
        elif isinstance(event, PrefillEvent):
            if event.num_computed_tokens == event.num_prompt_tokens:
                log(f"{event.prompt_idx}: prefilled: {plural(event.num_prompt_tokens)}")
            elif event.prompt_idx not in started:
                log(f"{event.prompt_idx}: started: {plural(event.num_prompt_tokens)} to prefill")
            started.add(event.prompt_idx)

    return show


def render(progress: BatchProgress, now_s: float, width: int) -> Group:
    """The view at `now_s`: a row per slot, then the totals. A narrow one drops the text, then the bars."""
    hidden = {"": width < _WIDTH_WITH_BAR, "text": width < _WIDTH_WITH_TEXT}
    table = Table(box=None, pad_edge=False, header_style="dim")
    columns = [(title, justify) for title, justify in _COLUMNS if not hidden.get(title)]
    for title, justify in columns:
        table.add_column(title, justify=justify, no_wrap=True)
    for slot, idx in enumerate(progress.slots):
        cells: dict[str, Cell] = {"phase": Text("free", style="dim")}
        if idx is not None:
            cells = _cells(progress.requests[idx], now_s, max(0, width - _COLUMNS_BEFORE_TEXT))
        table.add_row(str(slot), *(cells.get(title, "") for title, _ in columns[1:]))
    elapsed_s = now_s - progress.start_s
    rate = progress.num_tokens / max(elapsed_s, 1e-9)
    totals = (
        f"queue {progress.count('queued')} · done {progress.count('done')}/{len(progress.requests)} · "
        f"{plural(progress.num_tokens)} · {rate:.0f} tok/s · {elapsed_s:.1f} s"
    )
    return Group(table, Text(totals, style="bold"))


def _cells(request: RequestProgress, now_s: float, tail_width: int) -> dict[str, Cell]:
    """The cells of a slot's request, by column title; the text column shows the end of the answer."""
    if request.phase == "prefill":
        count, limit = request.num_computed_tokens, request.num_prompt_tokens
        phase = Text("prefill", style="yellow")
    else:
        count, limit = len(request.token_ids), request.max_tokens or 0
        phase = Text("decode", style="green")
    span_s = now_s - request.token_s[0] if request.token_s else 0.0
    return {
        "prompt": str(request.prompt_idx),
        "phase": phase,
        "": ProgressBar(limit or count, count, width=_BAR_WIDTH),
        "tokens": f"{count}/{limit}" if limit else str(count),
        "tok/s": f"{(count - 1) / span_s:.0f}" if count > 1 and span_s > 0 else "",
        "text": Text(" ".join(request.text.split())[-tail_width:]),
    }
