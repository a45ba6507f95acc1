"""`bench-chunked-prefill`: how the chunk size affects requests that decode at the same time."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Final

from tiny_llm_lab.measure.bench.chunked.picture import draw
from tiny_llm_lab.measure.bench.chunked.workload import Workload, overlap_complaint
from tiny_llm_lab.measure.bench.flags import shown_model
from tiny_llm_lab.measure.bench.fresh import Sweep
from tiny_llm_lab.measure.bench.host import host_facts
from tiny_llm_lab.measure.bench.latency import ITL, columns, contention
from tiny_llm_lab.measure.bench.report import Report, Row, Section, ratios_of
from tiny_llm_lab.measure.bench.run import Run
from tiny_llm_lab.measure.bench.spec import UNCHUNKED, Schedule, Spec
from tiny_llm_lab.runtime.console.field_flags import above_zero, add_field_flags, at_least_one, given_fields
from tiny_llm_lab.runtime.console.tables import markdown_table, print_lines, stdout_console
from tiny_llm_lab.runtime.console.talk import EXIT_INTERRUPTED, log, plural, writing
from tiny_llm_lab.serving.options import model_options
from tiny_llm_lab.serving.options.loop_options import CHUNK_POLICIES, TARGET_MS
from tiny_llm_lab.serving.options.sampling_options import add_draw_arguments, shown_sampling
from tiny_llm_lab.types import UserError

HELP = "Compare the latencies of week 2's loop for several prefill_step sizes while long prompts arrive."
Facts = Mapping[str, object]
Groups = Mapping[Schedule, list[Run]]
_ENOUGH_REPEATS: Final = 4
_SIZES: Final = (32, 128, 512, UNCHUNKED)
_POLICY_BASE: Final = 128
_NOTE: Final = (
    "Medians of fresh processes, {repeats} each (min-max). ITL: every gap of the answers that were being "
    "written during a long prefill. Peak: above the weights."
)
_KEPT: Final = ("total_s", "output_tokens_per_s", "ttft_short_s", "ttft_long_s", *ITL, "peak_bytes")
_SHOWN: Final = [
    replace(column, has_spread=column.key == "itl_max_s")
    for column in columns(("itl_p50_s", "itl_max_s", "ttft_long_s", "peak_bytes"))
]
# With the largest chunks; if a long prompt fits into one, it is not split at all.
_COMPARED: Final = ("itl_max_s", "itl_p50_s", "ttft_long_s", "output_tokens_per_s")


def add_arguments(parser: ArgumentParser) -> None:
    model_options.add_model_arguments(parser)
    model_options.add_async_scheduling(parser)
    add_draw_arguments(parser)
    about = f"chunk sizes to compare, in tokens (default: {' '.join(map(str, _SIZES))})"
    parser.add_argument(
        "--prefill-steps", type=at_least_one, nargs="+", default=_SIZES, metavar="N", help=about
    )
    about = f"also measure these policies, with a base of {_POLICY_BASE} tokens"
    parser.add_argument("--chunk-policies", nargs="+", choices=CHUNK_POLICIES[1:], default=(), help=about)
    about = "most ms of a chunk, for the policy adaptive (default: %(default)g)"
    parser.add_argument("--chunk-target-ms", type=above_zero, default=TARGET_MS, metavar="MS", help=about)
    add_field_flags(parser, Workload)
    about = "number of fresh processes for each setting (default: %(default)s)"
    parser.add_argument("--repeats", type=at_least_one, default=4, metavar="N", help=about)
    about = "slots of the batch (default: one per request, so that none waits)"
    parser.add_argument("--batch-size", type=at_least_one, metavar="N", help=about)
    about = "folder for the JSON file and the picture (default: %(default)s)"
    parser.add_argument("--out", type=Path, default=Path("out/chunked-prefill"), help=about)
    parser.add_argument("--json", action="store_true", help="print the result as JSON instead of the table")


def run(args: Namespace) -> int:
    workload = Workload(**given_fields(args, Workload))
    schedules = _schedules(args)
    spec = Spec.from_args(
        args,
        model_options.model_name(args),
        batch_size=args.batch_size or len(workload.requests()),
        requests=workload.requests(),
        async_scheduling=model_options.async_scheduling(args),
    ).drawn(args)
    facts = host_facts()
    log(f"a small run for the machine's speed, then {len(schedules) * args.repeats} runs in fresh processes")
    spec, learnt = workload.calibrated(replace(spec, schedule=schedules[0]))
    sweep = Sweep([replace(spec, schedule=each, variant=each.name) for each in schedules])
    exit_code = 0
    try:
        sweep.measure(args.repeats, complaint=overlap_complaint)
    except KeyboardInterrupt:
        if not all(sweep.runs.values()):
            raise
        exit_code = EXIT_INTERRUPTED
    whole = min(map(len, sweep.runs.values()))  # rounds that every schedule has seen
    groups = {each.schedule: runs[:whole] for each, runs in sweep.runs.items()}
    _report(args, spec, workload, facts | learnt, groups)
    if args.repeats < _ENOUGH_REPEATS:
        message = plural(args.repeats, "repeat")
        log(f"{message} cannot tell an effect from noise: choose {_ENOUGH_REPEATS} or more")
    return exit_code


def _schedules(args: Namespace) -> list[Schedule]:
    if args.chunk_policies and args.solution == "mlx-lm":
        raise UserError("mlx-lm cannot use these policies: choose --solution ref or mine")
    schedules = [Schedule(step) for step in args.prefill_steps]
    schedules += [_with_policy(policy, args.chunk_target_ms) for policy in args.chunk_policies]
    if len(set(schedules)) < len(schedules):
        raise UserError("a setting is listed twice: list each once")
    return schedules


def _with_policy(policy: str, target_ms: float) -> Schedule:
    target_ms = target_ms if policy == "adaptive" else 0.0
    return Schedule(_POLICY_BASE, policy=policy, target_ms=target_ms)


def _report(args: Namespace, spec: Spec, workload: Workload, facts: Facts, groups: Groups) -> None:
    model, sampling, report = shown_model(spec.model), shown_sampling(spec.sampling), Report(args.json)
    title = f"{model} · {args.solution}: {workload}, {sampling} ({facts['cpu']})"
    section = section_of(groups, title)
    report.keep(section)
    if not args.json:
        rows = [[row.name, *(col.cell(row.samples[col.key]) for col in _SHOWN)] for row in section.rows]
        print_lines(stdout_console(), [title, ""])
        print(markdown_table(["variant", *(col.title for col in _SHOWN)], rows))
        print_lines(stdout_console(), ["", *section.notes])
    settings = {"model": model, "solution": args.solution, "batch_size": spec.batch_size, "engine": False}
    settings |= {"async_scheduling": spec.async_scheduling, "sampling": sampling}
    samples = [
        {"schedule": asdict(schedule), "repeat": repeat, **each.to_json()}
        for schedule, runs in groups.items()
        for repeat, each in enumerate(runs)
    ]
    more = {"workload": asdict(workload), "samples": samples}
    result = report.end("chunked-prefill", settings, facts, **more)
    files = _new_files(args.out)
    with writing(f"to {args.out}", "choose another --out"):
        args.out.mkdir(parents=True, exist_ok=True)
        files[0].write_text(json.dumps(result) + "\n", encoding="utf-8")
        draw(groups, title, files[1])
    log(f"wrote {' and '.join(map(str, files))}")


def _new_files(out: Path) -> list[Path]:
    """A JSON file and a picture; results of earlier runs stay, and the new files are numbered."""
    stems = (f"chunked_prefill-{number}" if number > 1 else "chunked_prefill" for number in count(1))
    files = ([out / f"{stem}.json", out / f"{stem}.png"] for stem in stems)
    return next(pair for pair in files if not any(file.exists() for file in pair))


def section_of(groups: Mapping[Schedule, Sequence[Run]], title: str) -> Section:
    """A row for each schedule, smallest chunks first, with the ratios to the largest."""
    schedules = sorted(groups, key=lambda each: (each.max_chunk, each.budget))
    *others, base = [Row.of_runs(each.name, map(contention, groups[each])) for each in schedules]
    ratios = [ratio for row in others for ratio in ratios_of(row, base, columns(_COMPARED))]
    notes = [_in_a_sentence(others, base), _NOTE.format(repeats=len(groups[schedules[-1]]))]
    return Section("all", title, columns(_KEPT, has_spread=True), [*others, base], ratios, notes)


def _in_a_sentence(others: Sequence[Row], base: Row) -> str:
    said = []
    for row in others:
        gap, first = ratios_of(row, base, columns(("itl_max_s", "ttft_long_s")))
        if gap and first:
            spread = f" ({gap.low:.2f} to {gap.high:.2f})" if gap.low != gap.high else ""
            said.append(f"{gap.value:.2f}{spread} and {first.value:.2f} times as long with {row.name}")
    about = f"Compared with {base.name}, the longest gap and the wait for a long prompt's first token are"
    return f"{about} {'; '.join(said)}."
