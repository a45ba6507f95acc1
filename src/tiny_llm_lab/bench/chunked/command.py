"""`bench-chunked-prefill`: what the size of prompt chunks does to requests that decode meanwhile."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import count, product
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from tiny_llm_lab.bench import sample
from tiny_llm_lab.bench.child import CrashError, run_module
from tiny_llm_lab.bench.flags import add_numbers, at_least, shown_model, values_of
from tiny_llm_lab.bench.host import host_facts
from tiny_llm_lab.bench.report import document, print_section
from tiny_llm_lab.bench.run import Run
from tiny_llm_lab.bench.spec import Schedule, Spec
from tiny_llm_lab.commands.cli_errors import EXIT_FAILED, EXIT_INTERRUPTED, log, plural
from tiny_llm_lab.commands.options import (
    add_async_scheduling,
    add_model_arguments,
    async_scheduling,
    model_name,
)
from tiny_llm_lab.commands.tables import stdout_console
from tiny_llm_lab.interleave import interleave
from tiny_llm_lab.types import UserError

from .plot import draw, typical
from .result import Sample, grouped, sections_of
from .workload import Workload, overlap_complaint

HELP = "Compare latencies across prefill_step, or with --engine across token budgets, as long prompts arrive."
_ENOUGH_REPEATS: Final = 4
_UNCHUNKED: Final = 999_999  # tokens: more than any prompt has
_SIZES: Final = (32, 128, 512, _UNCHUNKED)
_BUDGETS: Final = (64, 128, 512, _UNCHUNKED)
_LISTS: Final = {
    "--prefill-steps": (1, f"default: {' '.join(map(str, _SIZES))}"),
    "--max-num-batched-tokens": (1, f"budgets, with --engine; default: {' '.join(map(str, _BUDGETS))}"),
    "--long-prefill-token-threshold": (0, "each with every budget, with --engine; 0 is off (default: 0)"),
}
_WORKLOAD: Final = {
    "--num-long": (3, 1, "long prompts"),
    "--long-tokens": (1024, 1, "tokens of a long prompt"),
    "--long-max-tokens": (16, 1, "tokens of a long prompt's answer"),
    "--num-short": (10, 2, "short prompts; two in five are there from the start, the others arrive late"),
    "--short-tokens": (24, 1, "tokens of a short prompt"),
    "--max-tokens": (128, 2, "tokens of a short prompt's answer"),
}
_OTHERS: Final = {
    "--repeats": (4, 1, "fresh processes for each setting"),
    "--batch-size": (None, 1, "default: one slot per request, so that no request waits for a slot"),
}


def add_arguments(parser: ArgumentParser) -> None:
    add_model_arguments(parser)
    add_async_scheduling(parser)
    parser.add_argument("--engine", action="store_true", help="measure week 3's engine, not week 2's loop")
    for flag, (least, what) in _LISTS.items():
        parser.add_argument(flag, type=at_least(least), nargs="+", default=(), metavar="N", help=what)
    add_numbers(parser, {**_WORKLOAD, **_OTHERS})
    parser.add_argument("--out", type=Path, default=Path("out/chunked-prefill"), help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print the result file instead of the tables")


def run(args: Namespace) -> int:
    sizes = values_of(args, _WORKLOAD)
    workload = Workload(short_max_tokens=sizes.pop("max_tokens"), **sizes)
    schedules = _schedules(args)
    spec = _spec(args, workload, schedules)
    facts = host_facts()
    samples: list[Sample] = []
    exit_code = 0
    try:
        facts |= _measure(workload, spec, schedules, args.repeats, samples)
    except CrashError as crash:
        log(f"{crash}\nerror: the measuring process of solution {args.solution} crashed, see above")
        return EXIT_FAILED
    except KeyboardInterrupt:
        if {each.schedule for each in samples} != set(schedules):
            raise
        exit_code = EXIT_INTERRUPTED
    _report(args, workload, spec, facts, samples)
    if args.repeats < _ENOUGH_REPEATS:
        said = plural(args.repeats, "repeat")
        log(f"{said} cannot tell noise from effect: take {_ENOUGH_REPEATS} or more")
    return exit_code


def _schedules(args: Namespace) -> list[Schedule]:
    budgets, thresholds = args.max_num_batched_tokens, args.long_prefill_token_threshold
    if args.engine and args.prefill_steps:
        raise UserError("--prefill-steps is of the loop: with --engine give --max-num-batched-tokens")
    if not args.engine and (budgets or thresholds):
        raise UserError("--max-num-batched-tokens and --long-prefill-token-threshold go with --engine")
    if args.engine:
        schedules = [Schedule(0, *pair) for pair in product(budgets or _BUDGETS, thresholds or (0,))]
    else:
        schedules = [Schedule(step) for step in args.prefill_steps or _SIZES]
    if len(set(schedules)) < len(schedules):
        raise UserError("a setting is named twice: name each once")
    return schedules


def _spec(args: Namespace, workload: Workload, schedules: Sequence[Schedule]) -> Spec:
    requests = workload.requests()
    spec = Spec(
        model=model_name(args),
        solution=args.solution,
        device=args.device,
        dtype=args.dtype,
        schedule=schedules[0],
        batch_size=args.batch_size or len(requests),
        requests=requests,
        async_scheduling=async_scheduling(args),
    )
    if args.engine:
        for schedule in schedules:
            try:
                sample.config_of(replace(spec, schedule=schedule))
            except UserError as error:
                raise UserError(f"{schedule.name}: {error} (--batch-size sets max_num_seqs)") from None
    return spec


def _measure(
    workload: Workload, spec: Spec, schedules: Sequence[Schedule], repeats: int, samples: list[Sample]
) -> dict[str, Any]:
    """Append every sample to `samples` as it is made, so that an interrupt loses none; returns facts."""
    console = Console(stderr=True)
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_interactive) as bar:
        task = bar.add_task("calibrating", total=len(schedules) * repeats)
        spec, facts = _calibrated(workload, spec)
        for repeat, schedule in interleave(schedules, repeats):
            title = f"{schedule.name}, repeat {repeat}"
            bar.update(task, description=title)
            found = Run.from_json(
                run_module(sample.MODULE, replace(spec, schedule=schedule, seed=repeat).to_json())
            )
            if complaint := overlap_complaint(found):
                raise UserError(f"{title}: {complaint}")
            samples.append(Sample(schedule, repeat, found))
            bar.advance(task)
            if not console.is_interactive:
                log(f"{title}: {found.total_s:.2f} s")
    return facts


def _calibrated(workload: Workload, spec: Spec) -> tuple[Spec, dict[str, Any]]:
    """The spec with arrivals that suit this machine, from one small run; and what was learnt."""
    small = replace(workload, num_long=3, num_short=2, long_max_tokens=1, short_max_tokens=2)
    whole = Schedule(_UNCHUNKED) if spec.schedule.prefill_step else Schedule(budget=_UNCHUNKED)
    # One at a time: an engine that prefills several prompts together would make all of them look slow.
    spec_of_one = replace(spec, requests=small.requests(), batch_size=1, schedule=whole)
    value = run_module(sample.MODULE, spec_of_one.to_json())
    run = Run.from_json(value)
    # The fastest of three: other programs on the machine can only add to the time.
    long_s = min(end_s - start_s for start_s, end_s in run.long_spans().values())
    # Between two early prompts there is a decode step; twice the first one's time covers it.
    first_s = run.of_kind("early")[0].ttft_s or 0.0
    requests = workload.requests(2 * first_s * workload.num_early, long_s)
    facts: dict[str, Any] = value["facts"] | {"unchunked_long_prefill_s": long_s}
    return replace(spec, requests=requests), facts


def _report(
    args: Namespace, workload: Workload, spec: Spec, facts: dict[str, Any], samples: Sequence[Sample]
) -> None:
    model = shown_model(spec.model)
    title = f"{model} · {spec.solution}: {workload} ({facts['cpu']})"
    sections = sections_of(samples, title, workload.long_tokens)
    settings = {"solution": spec.solution, "batch_size": spec.batch_size, "engine": args.engine}
    settings["async_scheduling"] = spec.async_scheduling
    result = document(
        "chunked-prefill",
        {"model": model, **settings},
        facts,
        sections,
        workload=asdict(workload),
        summary=sections[0].notes[-1],
        samples=[each.to_json() for each in samples],
    )
    files = _new_files(args.out)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        files[0].write_text(json.dumps(result) + "\n", encoding="utf-8")
        draw({each: typical(runs) for each, runs in grouped(samples).items()}, title, files[1])
    except OSError as error:
        raise UserError(f"cannot write to {args.out}: {error.strerror}: choose another --out") from None
    if args.json:
        print(json.dumps(result))
    else:
        console = stdout_console()
        for section in sections:
            print_section(console, section)
    log(f"wrote {' and '.join(map(str, files))}")


def _new_files(out: Path) -> list[Path]:
    """A JSON file and a picture; results of earlier runs stay, and the new files are numbered."""
    stems = (f"chunked_prefill-{number}" if number > 1 else "chunked_prefill" for number in count(1))
    files = ([out / f"{stem}.json", out / f"{stem}.png"] for stem in stems)
    return next(pair for pair in files if not any(file.exists() for file in pair))
