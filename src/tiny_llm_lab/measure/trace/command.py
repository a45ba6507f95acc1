"""`trace`: run requests through the engine and draw which step computed what."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final, get_args

from tiny_llm_lab.measure.trace.run import max_trace_len, trace_run
from tiny_llm_lab.measure.trace.sweep import SweepRow, print_sweep, sweep_json
from tiny_llm_lab.measure.trace.text import print_timeline
from tiny_llm_lab.measure.trace.timeline import (
    FORM,
    PRESETS,
    Preset,
    Timeline,
    TraceRequest,
    check_requests,
    parse_request,
)
from tiny_llm_lab.runtime.console.field_flags import at_least, at_least_one
from tiny_llm_lab.runtime.console.talk import log
from tiny_llm_lab.types import Policy, SchedulerConfig, UserError
from tiny_llm_lab.types.packages import PACKAGES

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
    timeline = _timeline(preset.requests, config, args.solution)
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
        SweepRow.of(each.long_prefill_token_threshold, _timeline(requests, each, args.solution))
        for each in configs
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


def _timeline(requests: Sequence[TraceRequest], config: SchedulerConfig, solution: str) -> Timeline:
    steps = trace_run(requests, config, solution=solution)
    return Timeline(requests, steps, config.max_num_batched_tokens)


def _preset(args: Namespace) -> tuple[str, Preset]:
    """The preset with its name for the title, or the requests that are given."""
    if args.request and args.preset:
        raise UserError("--preset brings its own requests: leave out --preset or --request")
    if args.request:
        return "", Preset("", [parse_request(text) for text in args.request], _BUDGET)
    name = args.preset or "spike"
    return f"{name}: ", PRESETS[name]
