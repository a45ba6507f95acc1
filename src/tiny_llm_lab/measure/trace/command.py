"""`trace`: run requests through the engine and draw which step computed what."""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final, get_args

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from tiny_llm_lab.measure.trace.run import max_trace_len, trace_run
from tiny_llm_lab.measure.trace.sweep import SweepRow, print_sweep, sweep_json
from tiny_llm_lab.measure.trace.timeline import (
    FORM,
    PRESETS,
    Cell,
    Preset,
    Timeline,
    TraceRequest,
    check_requests,
    parse_request,
    short_name,
)
from tiny_llm_lab.runtime.console.field_flags import at_least, at_least_one
from tiny_llm_lab.runtime.console.tables import KEEP, Column, print_table, stdout_can_print
from tiny_llm_lab.runtime.console.talk import log, plural
from tiny_llm_lab.runtime.metrics import percentile
from tiny_llm_lab.types import Policy, SchedulerConfig, UserError
from tiny_llm_lab.types.packages import PACKAGES

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


HELP = "Draw a run of the engine: how many tokens each request computed in each step."
_BUDGET: Final = 512
_NUM_SEQS: Final = 64
_MOST_ROWS: Final = 16  # bars of the picture


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    what = (
        "a request; its prompt is random and its answer always has MAX_TOKENS tokens; "
        "a fifth number is the priority (lower first); may be repeated"
    )
    add("--request", action="append", default=[], metavar=FORM, help=what)
    presets = "; ".join(f"{name}: {preset.description}" for name, preset in PRESETS.items())
    add("--preset", choices=list(PRESETS), help=f"{presets} (default without --request: spike)")
    what = f"token budget of a step (default: the preset's, or {_BUDGET})"
    add("--max-num-batched-tokens", "--budget", dest="budget", type=at_least_one, metavar="TOKENS", help=what)
    what = "most prompt tokens of a request in a step; 0 is off (default: the preset's, or 0)"
    names = ("--long-prefill-token-threshold", "--threshold")
    add(*names, dest="threshold", type=int, metavar="TOKENS", help=what)
    add("--max-num-seqs", type=at_least_one, help=f"most requests that run at a time (default: {_NUM_SEQS})")
    what = "which requests are scheduled first (default: %(default)s)"
    add("--policy", default="fcfs", choices=get_args(Policy), help=what)
    what = "tokens with which all prompts begin, with a prefix cache if above 0 (default: %(default)s)"
    add("--shared-prefix", type=at_least(0), default=0, metavar="TOKENS", help=what)
    what = "whose engine to run: yours or the reference's (default: %(default)s)"
    add("--solution", default="ref", choices=list(PACKAGES), help=what)
    what = f"show a row for each of these thresholds instead of one run; at most {_MOST_ROWS}, 0 is off"
    add("--sweep-thresholds", type=at_least(0), nargs="+", metavar="TOKENS", help=what)
    add("--svg", type=Path, metavar="FILE", help="also draw the run, or the sweep, into this SVG file")
    add("--json", action="store_true", help="print one JSON document instead of the picture or table")


def run(args: Namespace) -> int:
    name, preset = _preset(args)
    check_requests(preset.requests, max_trace_len())
    budget = preset.budget if args.budget is None else args.budget
    config = SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=min(_NUM_SEQS, budget) if args.max_num_seqs is None else args.max_num_seqs,
        max_model_len=max_trace_len(),
        long_prefill_token_threshold=preset.threshold if args.threshold is None else args.threshold,
        policy=args.policy,
    )
    if args.sweep_thresholds:
        return _sweep(args, name, preset.requests, config)
    timeline = _timeline(preset.requests, config, args)
    title = (
        f"{name}budget {budget}, threshold {config.long_prefill_token_threshold or 'off'}, {config.policy}"
    )
    if args.json:
        print(json.dumps({"settings": asdict(config) | {"solution": args.solution}} | timeline.as_json()))
    else:
        print_timeline(timeline, title, preset.note)
    if args.svg is not None:
        # Imported here: drawing takes a second to import.
        from tiny_llm_lab.measure.trace.picture import save_run

        save_run(timeline, title, args.svg)
        log(f"wrote {args.svg}")
    return 0


def _sweep(args: Namespace, name: str, requests: Sequence[TraceRequest], config: SchedulerConfig) -> int:
    """One run for each threshold; all configurations are checked before the first run."""
    if args.threshold is not None:
        raise UserError("--sweep-thresholds brings its own thresholds: leave out --threshold")
    if len(args.sweep_thresholds) > _MOST_ROWS:
        raise UserError(f"--sweep-thresholds takes {_MOST_ROWS} at most: leave some out")
    configs = [replace(config, long_prefill_token_threshold=each) for each in args.sweep_thresholds]
    rows = [
        SweepRow.of(each.long_prefill_token_threshold, _timeline(requests, each, args)) for each in configs
    ]
    title = f"{name}budget {config.max_num_batched_tokens}, {config.policy}"
    if args.json:
        settings = asdict(config) | {"solution": args.solution}
        del settings["long_prefill_token_threshold"]
        print(json.dumps({"settings": settings, "thresholds": sweep_json(rows)}))
    else:
        print_sweep(rows, title)
    if args.svg is not None:
        from tiny_llm_lab.measure.trace.picture import save_sweep

        save_sweep(rows, title, args.svg)
        log(f"wrote {args.svg}")
    return 0


def _timeline(requests: Sequence[TraceRequest], config: SchedulerConfig, args: Namespace) -> Timeline:
    shared = min(args.shared_prefix, max_trace_len())
    steps = trace_run(requests, config, solution=args.solution, shared_prefix=shared)
    return Timeline(requests, steps, config.max_num_batched_tokens)


def _preset(args: Namespace) -> tuple[str, Preset]:
    """The preset with its name for the title, or the requests that are given."""
    if args.request and args.preset:
        raise UserError("--preset brings its own requests: leave out --preset or --request")
    if args.request:
        return "", Preset("", [parse_request(text) for text in args.request], _BUDGET)
    name = args.preset or "spike"
    return f"{name}: ", PRESETS[name]
