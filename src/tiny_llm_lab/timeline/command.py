"""`trace`: run requests through the engine and draw which step computed what."""

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from tiny_llm_lab.commands.cli_errors import log, plural
from tiny_llm_lab.commands.tables import stdout_console
from tiny_llm_lab.solution import PACKAGES
from tiny_llm_lab.trace import TraceRequest, max_trace_len, trace_run
from tiny_llm_lab.types import Policy, SchedulerConfig, UserError

from .inputs import PRESETS, check_requests, parse_request
from .svg import as_svg
from .text import print_timeline
from .timeline import Timeline

HELP = "Draw a run of the engine: which request computed how many tokens in which step."
_BUDGET, _NUM_SEQS = 512, 64


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--request",
        action="append",
        default=[],
        metavar="NAME:ARRIVAL_STEP:PROMPT_LEN:MAX_TOKENS",
        help="a request, repeatable; the prompt is random tokens, and the answer has MAX_TOKENS whatever "
        "they are; a fifth number is its priority (lower first)",
    )
    says = "; ".join(f"{name}: {preset.says}" for name, preset in PRESETS.items())
    parser.add_argument("--preset", choices=list(PRESETS), help=f"{says} (default without --request: spike)")
    parser.add_argument(
        "--budget", type=int, help=f"most tokens of a step (default: the preset's, or {_BUDGET})"
    )
    parser.add_argument("--threshold", type=int, help="most tokens of one request in a step; 0 = off")
    parser.add_argument("--max-num-seqs", type=int, help=f"most requests that run at a time ({_NUM_SEQS})")
    parser.add_argument("--policy", default="fcfs", choices=get_args(Policy), help="default: %(default)s")
    parser.add_argument("--solution", default="ref", choices=list(PACKAGES), help="default: %(default)s")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw it into this file as well")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the picture")


def run(args: Namespace) -> int:
    requests, config = _asked(args)
    steps = trace_run(requests, config, solution=args.solution)
    timeline = Timeline(requests, steps, config.max_num_batched_tokens)
    title = _title(args, config)
    if args.json:
        print(json.dumps(_document(timeline, config, args.solution)))
    else:
        print_timeline(timeline, title, stdout_console())
    if args.svg is not None:
        _write(args.svg, as_svg(timeline, title))
    return 0


def _asked(args: Namespace) -> tuple[list[TraceRequest], SchedulerConfig]:
    if args.request and args.preset:
        raise UserError("--preset brings its own requests: leave out --preset or --request")
    preset = None if args.request else PRESETS[args.preset or "spike"]
    requests = list(preset.requests) if preset else [parse_request(text) for text in args.request]
    check_requests(requests)
    budget, threshold = args.budget, args.threshold
    if budget is None:
        budget = preset.budget if preset else _BUDGET
    if threshold is None:
        threshold = preset.threshold if preset else 0
    return requests, SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=min(_NUM_SEQS, budget) if args.max_num_seqs is None else args.max_num_seqs,
        max_model_len=max_trace_len(),
        long_prefill_token_threshold=threshold,
        policy=args.policy,
    )


def _title(args: Namespace, config: SchedulerConfig) -> str:
    threshold = config.long_prefill_token_threshold
    name = "" if args.request else f"{args.preset or 'spike'}: "
    limits = f"budget {config.max_num_batched_tokens}, threshold {threshold or 'off'}"
    return f"{name}{limits}, {config.policy}"


def _document(timeline: Timeline, config: SchedulerConfig, solution: str) -> dict[str, Any]:
    requests = [
        asdict(request)
        | {
            "ttft_steps": timeline.ttft_steps(request),
            "decode_step_costs": timeline.decode_costs(request),
        }
        for request in timeline.requests
    ]
    settings = asdict(config) | {"solution": solution}
    return {
        "settings": settings,
        "requests": requests,
        "steps": timeline.steps,
        "totals": timeline.totals,
    }


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}: choose another --svg") from None
    log(f"wrote {path} ({plural(len(text) // 1024 + 1, 'kilobyte')})")
