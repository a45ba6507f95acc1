"""What `batch-main` prints at the end: a table for people, or one JSON document for programs."""

from dataclasses import asdict
from typing import Any, Final

from tiny_llm_lab.cli.progress import BatchProgress, Status
from tiny_llm_lab.runtime.console.tables import KEEP, Column, print_parts, print_table
from tiny_llm_lab.runtime.console.talk import plural, terminal_width
from tiny_llm_lab.runtime.metrics import RunSummary, decode_rate, spread, summarize
from tiny_llm_lab.types import Completion

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
