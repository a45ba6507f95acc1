"""What `batch-main` shows: a live view or lines while it runs, at the end a table, or one JSON document."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console, Group, JustifyMethod
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tiny_llm_lab.cli.progress import BatchProgress, RequestProgress, Status
from tiny_llm_lab.runtime.console.tables import KEEP, Column, print_parts, print_table
from tiny_llm_lab.runtime.console.talk import log, plural, terminal_width
from tiny_llm_lab.runtime.metrics import RunSummary, decode_rate, spread, summarize
from tiny_llm_lab.types import Completion, DoneEvent, Event, PrefillEvent

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


_LEAST_HEAD, _TEXT_HEAD = 16, 48  # characters of an answer
_NUMBERS_WIDTH: Final = 76  # of all columns but the text
_STYLES: Final[dict[Status, str]] = {"error": "red", "interrupted": "yellow"}
COLUMNS: Final = (
    Column("prompt", KEEP),
    Column("status", KEEP, is_left=True),
    Column("in tok", 2),
    Column("out tok", 4),
    Column("TTFT ms", KEEP),
    Column("ITL\np50 ms", 3),
    Column("ITL\np99 ms", KEEP),
    Column("ITL\nmax ms", KEEP),
    Column("tok/s", 1),
    Column("text", KEEP, is_text=True),
)


def print_report(progress: BatchProgress, total_s: float) -> None:
    """The table and the total line, on stdout."""
    styles = [_STYLES.get(request.status, "") for request in progress.requests]
    print_table(COLUMNS, request_rows(progress), styles)
    print_parts(total_line(run_summary(progress, total_s), _num_interrupted(progress)))


def request_rows(progress: BatchProgress) -> list[list[str]]:
    """One row per request, in prompt order."""
    ends = [(request.status, request.outcome()) for request in progress.requests]
    return [
        [str(done.prompt_idx), status, *_numbers(done), done.error or _head(done.text)]
        for status, done in ends
    ]


def total_line(summary: RunSummary, num_interrupted: int = 0) -> str:
    """The whole run in one line."""
    parts = [plural(summary.num_requests, "request")]
    parts += [f"{summary.num_failed} failed"] if summary.num_failed else []
    parts += [f"{num_interrupted} interrupted"] if num_interrupted else []
    parts += [f"{plural(summary.num_output_tokens)} in {summary.total_s:.2f} s"]
    if summary.output_tokens_per_s:
        parts += [f"{summary.output_tokens_per_s:.1f} tok/s"]
    if summary.ttft_median_s is not None:
        parts += [f"TTFT median {_ms(summary.ttft_median_s)} ms"]
    if itl := summary.itl:
        parts += [f"ITL p50 {_ms(itl.p50_s)} p99 {_ms(itl.p99_s)} max {_ms(itl.max_s)} ms"]
    return " · ".join(parts)


def as_json(progress: BatchProgress, total_s: float, settings: dict[str, Any]) -> dict[str, Any]:
    """Everything in the table, and each token's time in seconds since the start of the run."""
    return {
        "settings": settings,
        "requests": [
            _request_json(request.outcome(), request.status, progress.start_s)
            for request in progress.requests
        ],
        "total": asdict(run_summary(progress, total_s)) | {"num_interrupted": _num_interrupted(progress)},
    }


def run_summary(progress: BatchProgress, total_s: float) -> RunSummary:
    """The metrics of the run, with what interrupted requests had produced."""
    return summarize([request.outcome() for request in progress.requests], total_s)


def _request_json(done: Completion, status: Status, start_s: float) -> dict[str, Any]:
    itl = spread(done.timing.itl_s)
    return {
        "prompt_idx": done.prompt_idx,
        "status": status,
        "error": done.error,
        "num_prompt_tokens": done.num_prompt_tokens,
        "num_output_tokens": len(done.token_ids),
        "ttft_s": done.timing.ttft_s,
        "itl": asdict(itl) if itl else None,
        "decode_tokens_per_s": decode_rate(done.timing),
        "arrival_s": done.timing.arrival_s - start_s,
        "token_s": [time_s - start_s for time_s in done.timing.token_s],
        "text": done.text,
    }


def _numbers(done: Completion) -> list[str]:
    itl, rate = spread(done.timing.itl_s), decode_rate(done.timing)
    times = [_ms(itl.p50_s), _ms(itl.p99_s), _ms(itl.max_s)] if itl else ["", "", ""]
    ttft = _ms(done.timing.ttft_s) if done.timing.ttft_s is not None else ""
    counts = [str(done.num_prompt_tokens or ""), str(len(done.token_ids))]
    return [*counts, ttft, *times, f"{rate:.1f}" if rate else ""]


def _num_interrupted(progress: BatchProgress) -> int:
    return sum(request.status == "interrupted" for request in progress.requests)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"


def _head(text: str) -> str:
    line = " ".join(text.split())
    # An answer takes one line; an error may take more.
    width = terminal_width() or _NUMBERS_WIDTH + _TEXT_HEAD
    most = min(_TEXT_HEAD, max(_LEAST_HEAD, width - _NUMBERS_WIDTH))
    return line if len(line) <= most else line[: most - 1] + "…"
