"""`bench-chunked-prefill`: how the chunk size affects requests that decode at the same time."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import StrMethodFormatter

from tiny_llm_lab.measure.bench.chunked.workload import Workload, overlap_complaint
from tiny_llm_lab.measure.bench.flags import shown_model
from tiny_llm_lab.measure.bench.fresh import Sweep
from tiny_llm_lab.measure.bench.host import host_facts
from tiny_llm_lab.measure.bench.latency import ITL, TTFT, columns, contention, latencies, victim_itl
from tiny_llm_lab.measure.bench.report import Report, Row, Section, ratios_of
from tiny_llm_lab.measure.bench.run import Run
from tiny_llm_lab.measure.bench.spec import UNCHUNKED, Schedule, Spec
from tiny_llm_lab.measure.ink import CHUNKS, OFF, PREFILL, open_up, save_figure
from tiny_llm_lab.runtime.console.field_flags import above_zero, add_field_flags, at_least_one, given_fields
from tiny_llm_lab.runtime.console.talk import EXIT_INTERRUPTED, log, plural
from tiny_llm_lab.serving.options import model_options
from tiny_llm_lab.serving.options.loop_options import CHUNK_POLICIES, TARGET_MS
from tiny_llm_lab.serving.options.sampling_options import add_draw_arguments, shown_sampling
from tiny_llm_lab.types import UserError

_QUESTION: Final = "How long do running answers wait for their next token while long prompts are computed?"
_PANEL_INCHES: Final = (12.0, 2.3)


def draw(groups: Mapping[Schedule, Sequence[Run]], title: str, path: Path) -> None:
    """Write a PNG with one panel per schedule, smallest chunks first, each showing its typical run."""
    width, height = _PANEL_INCHES
    # Figure without pyplot: no window system, no global state.
    figure = Figure(figsize=(width, height * len(groups) + 1), layout="constrained")
    grid = figure.subplots(len(groups), 1, sharex=True, sharey=True, squeeze=False)
    schedules = sorted(groups, key=lambda each: (each.max_chunk, each.budget))
    for axes, schedule in zip(grid[:, 0], schedules, strict=True):
        _panel(axes, schedule.name, typical(groups[schedule]))
    _legend(grid[0, 0])
    grid[-1, 0].set_xlabel("seconds since the start of the run")
    open_up(figure.axes)
    figure.suptitle(f"{_QUESTION}\n{title}", fontsize=11)
    save_figure(figure, path)


def typical(runs: Sequence[Run]) -> Run:
    """The run whose longest gap is the (lower) median of its repeats."""
    ordered = sorted(runs, key=lambda run: max(victim_itl(run)))
    return ordered[(len(runs) - 1) // 2]


def _panel(axes: Axes, name: str, run: Run) -> None:
    longs = set(run.long_spans())
    chunks = [chunk for chunk in run.chunks if chunk.prompt_idx in longs]
    for number, chunk in enumerate(chunks):
        color = PREFILL[number % 2]
        axes.axvspan(chunk.start_s, chunk.end_s, color=color, linewidth=0, zorder=0)
    for idx in run.victims():
        timing = run.timings[idx]
        gaps_ms = [gap * 1000 for gap in timing.itl_s]
        # Steps: a gap is the height of the whole time between two tokens.
        axes.step(timing.distinct_s, [gaps_ms[0], *gaps_ms], color=CHUNKS, linewidth=0.8, alpha=0.6)
    longest_ms = max(victim_itl(run)) * 1000
    axes.axhline(longest_ms, color=OFF, linewidth=0.8, linestyle="--")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_ylabel("ITL (ms)")
    axes.grid(axis="y", which="major", alpha=0.3)
    pieces = f"in {len(chunks)} chunks" if len(chunks) > len(longs) else "each in one piece"
    message = f"{plural(len(longs), 'long prompt')} {pieces}, longest gap {longest_ms:.0f} ms"
    axes.set_title(f"{name}: {message}", loc="left", fontsize=10)


def _legend(axes: Axes) -> None:
    handles = [
        Patch(color=PREFILL[0], label="one chunk of a long prompt"),
        Line2D([], [], color=CHUNKS, label="wait for the next token"),
        Line2D([], [], color=OFF, linestyle="--", linewidth=0.8, label="longest wait"),
    ]
    axes.legend(handles=handles, loc="upper right", fontsize=8, ncols=3, framealpha=0.9)


HELP = "Compare the latencies of week 2's loop for several prefill_step sizes while long prompts arrive."
Facts = Mapping[str, object]
Groups = Mapping[Schedule, list[Run]]
_ENOUGH_REPEATS: Final = 4
_SIZES: Final = (32, 128, 512, UNCHUNKED)
_POLICY_BASE: Final = 128
_NOTE: Final = (
    "Median of fresh processes, {repeats} each (min-max). TTFT short: the short prompts that came "
    "during a long prefill. ITL: every gap of the requests that were decoding during one, pooled."
)
_SHOWN: Final = ("total_s", "output_tokens_per_s", "ttft_short_s", "ttft_long_s", *ITL)
_CLASSES: Final[dict[str, tuple[str, ...]]] = {"short": ("early", "late"), "long": ("long",)}
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
    parser.add_argument("--json", action="store_true", help="print the result as JSON instead of the tables")


def run(args: Namespace) -> int:
    workload = Workload(**given_fields(args, Workload))
    schedules = _schedules(args)
    slots = args.batch_size or len(workload.requests())
    spec = Spec.from_args(
        args,
        model_options.model_name(args),
        batch_size=slots,
        requests=workload.requests(),
        async_scheduling=model_options.async_scheduling(args),
    ).drawn(args)
    facts = host_facts()
    spec, learnt = workload.calibrated(replace(spec, schedule=schedules[0]))
    sweep = Sweep([replace(spec, schedule=each, variant=each.name) for each in schedules])
    exit_code = 0
    try:
        sweep.measure(args.repeats, complaint=overlap_complaint)
    except KeyboardInterrupt:
        if not all(sweep.runs.values()):
            raise
        exit_code = EXIT_INTERRUPTED
    _report(args, spec, workload, facts | learnt, {each.schedule: runs for each, runs in sweep.runs.items()})
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
    sections = sections_of(groups, title)
    for section in sections:
        report.add(section)
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
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        files[0].write_text(json.dumps(result) + "\n", encoding="utf-8")
        draw(groups, title, files[1])
    except OSError as error:
        raise UserError(f"cannot write to {args.out}: {error.strerror}: choose another --out") from None
    log(f"wrote {' and '.join(map(str, files))}")


def _new_files(out: Path) -> list[Path]:
    """A JSON file and a picture; results of earlier runs stay, and the new files are numbered."""
    stems = (f"chunked_prefill-{number}" if number > 1 else "chunked_prefill" for number in count(1))
    files = ([out / f"{stem}.json", out / f"{stem}.png"] for stem in stems)
    return next(pair for pair in files if not any(file.exists() for file in pair))


def sections_of(groups: Mapping[Schedule, Sequence[Run]], title: str) -> list[Section]:
    """All requests, with a row for each schedule, smallest chunks first; then each class separately."""
    schedules = sorted(groups, key=lambda each: (each.max_chunk, each.budget))
    *others, base = [Row.of_runs(each.name, map(contention, groups[each])) for each in schedules]
    classes = [
        Row.of_runs(f"{schedule.name}, {kind}", (latencies(run.of_kind(*kinds)) for run in groups[schedule]))
        for schedule in schedules
        for kind, kinds in _CLASSES.items()
    ]
    ratios = [ratio for row in others for ratio in ratios_of(row, base, columns(_COMPARED))]
    fastest = min([*others, base], key=lambda row: row.median("total_s"))
    notes = [_NOTE.format(repeats=len(groups[schedules[-1]])), f"{fastest.name} has the shortest total."]
    about = "Short requests, early and late, and long ones"
    return [
        Section("all", title, columns(_SHOWN, has_spread=True), [*others, base], ratios, notes),
        Section("classes", about, columns((*TTFT, *ITL)), classes),
    ]
