"""Shows a running batch: a table that redraws itself on a terminal, plain lines elsewhere."""

import time
from types import TracebackType
from typing import Final, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tiny_llm_lab.types import DoneEvent, Event, PrefillEvent

from .cli_errors import log, plural
from .progress import BatchProgress, RequestProgress

_REDRAW_EVERY_S: Final = 0.1
_BAR_WIDTH: Final = 16
_COLUMNS_BEFORE_TEXT: Final = 62
_WIDTH_WITH_TEXT: Final = _COLUMNS_BEFORE_TEXT + 12
_WIDTH_WITH_BAR: Final = 60
# Titles, and whether a column is set to the left; the bar has no title.
_COLUMNS: Final = (
    ("slot", False),
    ("prompt", False),
    ("phase", True),
    ("", True),
    ("tokens", False),
    ("tok/s", False),
    ("text", True),
)


class View(Protocol):
    """Shows progress between `with` and its end."""

    def __enter__(self) -> "View": ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def show(self, event: Event, request: RequestProgress) -> None: ...


def choose_view(progress: BatchProgress) -> View:
    """The live table on a terminal that can redraw, lines otherwise."""
    console = Console(stderr=True)
    return LiveView(progress, console) if console.is_interactive else LineView()


class LineView:
    """One line on stderr when a request starts, is prefilled and ends."""

    def __init__(self) -> None:
        self._started: set[int] = set()

    def __enter__(self) -> "LineView":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def show(self, event: Event, request: RequestProgress) -> None:
        if isinstance(event, DoneEvent):
            done = event.completion
            said = done.error or f"{done.finish_reason}, {plural(len(done.token_ids))}"
            log(f"{done.prompt_idx}: done: {said}")
        elif isinstance(event, PrefillEvent):
            if event.num_computed_tokens == event.num_prompt_tokens:
                log(f"{event.prompt_idx}: prefilled: {plural(event.num_prompt_tokens)}")
            elif event.prompt_idx not in self._started:
                log(f"{event.prompt_idx}: started: {plural(event.num_prompt_tokens)} to prefill")
            self._started.add(event.prompt_idx)


class LiveView:
    """One row per slot, redrawn in place on stderr."""

    def __init__(self, progress: BatchProgress, console: Console) -> None:
        self._progress, self._console = progress, console
        # Redrawn from the events, without a thread of its own: one less thing that perturbs the timing.
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawn_s = 0.0

    def __enter__(self) -> "LiveView":
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, event: Event, request: RequestProgress) -> None:
        now_s = time.perf_counter()
        if now_s - self._drawn_s >= _REDRAW_EVERY_S:
            self._drawn_s = now_s
            self._live.update(render(self._progress, now_s, self._console.width), refresh=True)


def render(progress: BatchProgress, now_s: float, width: int) -> Group:
    """The whole view at `now_s`: a row per slot, then the totals; a narrow one has no text, then no bars."""
    has_bar, has_text = width >= _WIDTH_WITH_BAR, width >= _WIDTH_WITH_TEXT
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title, is_left in _COLUMNS:
        if (title or has_bar) and (title != "text" or has_text):
            table.add_column(title, justify="left" if is_left else "right", no_wrap=True)
    for slot, idx in enumerate(progress.slots):
        cells: list[str | Text | ProgressBar]
        if idx is None:
            cells = ["", Text("free", style="dim"), "", "", "", ""]
        else:
            cells = _cells(progress.requests[idx], now_s, max(0, width - _COLUMNS_BEFORE_TEXT))
        bar = cells[2:3] if has_bar else []
        table.add_row(str(slot), *cells[:2], *bar, *(cells[3:] if has_text else cells[3:-1]))
    elapsed_s = now_s - progress.start_s
    rate = progress.num_tokens / max(elapsed_s, 1e-9)
    totals = (
        f"queue {progress.num_queued} · done {progress.num_done}/{len(progress.requests)} · "
        f"{plural(progress.num_tokens)} · {rate:.0f} tok/s · {elapsed_s:.1f} s"
    )
    return Group(table, Text(totals, style="bold"))


def _cells(request: RequestProgress, now_s: float, tail_width: int) -> list[str | Text | ProgressBar]:
    """Prompt, phase, bar, tokens, rate and the end of the text."""
    if request.phase == "prefill":
        bar = ProgressBar(request.num_prompt_tokens, request.num_computed_tokens, width=_BAR_WIDTH)
        tokens = f"{request.num_computed_tokens}/{request.num_prompt_tokens}"
        return [str(request.prompt_idx), Text("prefill", style="yellow"), bar, tokens, "", ""]
    count, limit = len(request.token_ids), request.max_tokens
    bar = ProgressBar(limit or count, count, width=_BAR_WIDTH)
    span_s = now_s - request.token_s[0]
    rate = f"{(count - 1) / span_s:.0f}" if count > 1 and span_s > 0 else ""
    tail = " ".join(request.text.split())[-tail_width:]
    tokens = f"{count}/{limit}" if limit else str(count)
    return [str(request.prompt_idx), Text("decode", style="green"), bar, tokens, rate, Text(tail)]
