"""`tune`: the settings of a server for this machine, found in the simulator and checked on real servers."""

import json
import math
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from operator import attrgetter
from pathlib import Path
from typing import Final

from tiny_llm_lab.measure.bench.flags import shown_model
from tiny_llm_lab.measure.labs.lab import LabSetup
from tiny_llm_lab.measure.labs.server import OwnServers, Variant, serve_arguments
from tiny_llm_lab.measure.load.client import LoadRun
from tiny_llm_lab.measure.load.results.result import Goodput, summarize
from tiny_llm_lab.measure.report.plan import STEP_TIMES
from tiny_llm_lab.measure.simulate.run import Outcome, simulate
from tiny_llm_lab.measure.simulate.setting import (
    MEASURED,
    Setting,
    StepCost,
    calibration_json,
    load_calibration,
)
from tiny_llm_lab.measure.traffic.request import LoadRequest, Request
from tiny_llm_lab.runtime.console.field_flags import (
    add_field_flags,
    at_least,
    at_least_one,
    flag,
    flag_name,
    flags_in,
    given_fields,
)
from tiny_llm_lab.runtime.console.tables import KEEP, Column, print_lines, print_table, stdout_console
from tiny_llm_lab.runtime.console.talk import EXIT_FAILED, Remaining, log, new_folder, plural, program
from tiny_llm_lab.runtime.solution import Scheduling, load_scheduling, load_serving
from tiny_llm_lab.runtime.steps.calibration import MAX_CHUNK, MAX_LEN, THOROUGH, calibrate
from tiny_llm_lab.serving.options import model_options
from tiny_llm_lab.types import UserError


@dataclass(frozen=True)
class Result:
    """Requests per second inside both SLOs, and p99 latencies in ms; None if nothing was measured."""

    setting: Setting
    goodput: float
    itl_ms: float | None
    ttft_ms: float | None

    @classmethod
    def simulated(cls, setting: Setting, outcome: Outcome) -> "Result":
        """What the simulator says."""
        p99_ms = (each.p99_s * 1e3 if each else None for each in (outcome.itl, outcome.ttft))
        return cls(setting, outcome.goodput, *p99_ms)

    @classmethod
    def measured(cls, setting: Setting, run: LoadRun) -> "Result":
        """What the clients of a server saw, as `bench-serve` counts it."""
        goodput = Goodput(ttft=setting.ttft_slo_ms, itl=setting.itl_slo_ms)
        result = summarize(run, [99], goodput, is_open_loop=True)
        return cls(setting, result["request_goodput"], result["p99_itl_ms"], result["p99_ttft_ms"])

    @property
    def worst(self) -> tuple[float, str]:
        """The latency that is closest to its limit, or furthest above it: p99 / limit, and a sentence."""
        slo = self.setting
        p99s = (("ITL", self.itl_ms or 0.0, slo.itl_slo_ms), ("TTFT", self.ttft_ms or 0.0, slo.ttft_slo_ms))
        return max(
            (p99 / most, f"p99 {name} is {p99:.1f} ms, and its limit {most:g} ms") for name, p99, most in p99s
        )

    @property
    def is_legal(self) -> bool:
        """Whether both SLOs are met."""
        return self.worst[0] <= 1


def ranked(results: Iterable[Result]) -> list[Result]:
    """The best first: those inside both SLOs by goodput in hundredths of the best, then by p99 ITL.

    The others follow by how far they miss. Of equal results, such as of two numbers of sequences that are
    never reached, the first stays.
    """
    first = dict[tuple[float | None, ...], Result]()
    for each in results:
        first.setdefault((each.goodput, each.itl_ms, each.ttft_ms), each)
    most = max((each.goodput for each in first.values()), default=0.0) or 1.0

    def key(each: Result) -> tuple[float, ...]:
        met = (0.0, -round(each.goodput / most, 2), each.itl_ms or 0.0)
        return met if each.is_legal else (1.0, each.worst[0])

    return sorted(first.values(), key=key)


def settings_of(
    base: Setting, budgets: Sequence[str], thresholds: Sequence[int], seqs: Sequence[int]
) -> list[Setting]:
    """Every combination that the engine takes, by its own rules; a threshold counts only below the budget.

    Raises UserError with the last refusal if it takes none.
    """
    result, refusal = list[Setting](), "every threshold reaches its budget"
    for budget, threshold, count in product(budgets, thresholds, seqs):
        setting = replace(base, budget=budget, threshold=threshold, max_num_seqs=count)
        try:
            limit = setting.scheduler().max_num_batched_tokens
        except UserError as error:
            refusal = str(error)
            continue
        if threshold < limit:
            result.append(setting)
    if not result:
        raise UserError(f"no combination can be tried: {refusal}")
    return result


def serve_flags(setting: Setting) -> tuple[str, ...]:
    """The flags of `serve` with which its engine schedules as the simulated one; without --max-model-len."""
    names = ("max_num_batched_tokens", "long_prefill_token_threshold", "max_num_seqs", "policy")
    config = setting.scheduler()
    values = {name: getattr(config, name) for name in names} | {"block_size": setting.block_size}
    if setting.fixed_budget is None:
        values["itl_slo_ms"] = f"{setting.itl_slo_ms:g}"
    return tuple(text for name, value in values.items() for text in (flag_name(name), str(value)))


HELP = "Find the settings of a server that serve your traffic within your SLOs on this machine."
EXAMPLES: Final = (
    ("--rate 3 --lengths chat --itl-slo-ms 20 --ttft-slo-ms 1000", "measure, simulate and check"),
    ("--calibration step-times.json --lengths documents --no-check", "simulate only"),
)
# What the grid sets, and what a measured machine has in place of assumptions.
_NOT_GIVEN: Final = {"budget", "threshold", "max_num_seqs", "shape", "gb_s", "tflop_s", "overhead_ms"}
_NUM_CHECKED: Final = 2
_WARM_UPS: Final = 4
_SIDES: Final = ("simulated", "measured")
COLUMNS: Final = [
    Column(title, KEEP)
    for title in ("budget", "threshold", "seqs", "TTFT\np99 ms", "ITL\np99 ms", "SLO", "goodput\nreq/s")
]


@dataclass(frozen=True)
class Traffic(Setting):
    """A `Setting` with defaults for a server on this machine."""

    requests: int = flag(200, "number of requests", at_least_one)
    max_model_len: int = flag(4096, "most tokens of a request; longer prompts are cut", at_least(2))
    calibration: Path | None = flag(None, MEASURED.format("we measure"), metavar="FILE", alias="--machine")


def add_arguments(parser: ArgumentParser) -> None:
    model_options.add_model_arguments(parser)
    model_options.add_kernel_arguments(parser)
    add_field_flags(parser, Traffic, [each for each in flags_in(Traffic) if each.field not in _NOT_GIVEN])
    grid = {
        "budgets": (
            "token budgets of a step to try, besides the latency policy",
            (64, 128, 256, 512, 1024, 2048),
        ),
        "thresholds": ("most prompt tokens of a request in a step to try; 0 is off", (0, 128, 512)),
        "seqs": ("most requests that run at a time to try", (64, 32, 16, 8)),
    }
    for name, (about, default) in grid.items():
        kind = at_least(0 if name == "thresholds" else 1)
        shown = f"{about} (default: {' '.join(map(str, default))})"
        parser.add_argument(f"--{name}", type=kind, nargs="+", default=default, metavar="N", help=shown)
    about = "settings to show (default: %(default)s)"
    parser.add_argument("--top", type=at_least_one, default=5, metavar="N", help=about)
    about = "simulate only, without a real server for the best two"
    parser.add_argument("--no-check", action="store_true", help=about)
    about = "folder for step times and logs; an existing one gets a number (default: %(default)s)"
    parser.add_argument("--out", type=Path, default=Path("out/tune"), help=about)


def run(args: Namespace) -> int:
    llm, base = load_scheduling(args.solution), Traffic(**given_fields(args, Traffic))
    settings = settings_of(base, [*map(str, args.budgets), "slo"], args.thresholds, args.seqs)
    requests = base.traffic()  # refuses lengths before we measure anything
    given = load_calibration(base.calibration) if base.calibration else None
    folder = args.out if given and args.no_check else new_folder(args.out)
    best = ranked(_simulated(llm, settings, given or load_calibration(_step_times(args, folder))))
    print_table(COLUMNS, [_cells(each) for each in best[: args.top]])
    model = model_options.model_name(args)
    own = serve_arguments(args, model, base.max_model_len)
    legal = [] if args.no_check else [each for each in best[:_NUM_CHECKED] if each.is_legal]
    if legal:
        log(f"the traffic on a real server for each of the best {len(legal)} ...")
        with OwnServers(own, folder / "servers", one_at_a_time=True) as servers:
            setup = LabSetup(servers, model, folder, max_model_len=base.max_model_len, seed=base.seed)
            results = [*_measured(setup, [each.setting for each in legal], requests)]
        pairs = zip(legal, results, strict=True)
        rows = [[side, *_cells(each)] for pair in pairs for side, each in zip(_SIDES, pair, strict=True)]
        print()
        print_table([Column("", KEEP, is_left=True), *COLUMNS], rows)
        best = ranked(results)
    flags = shlex.join([*own, *serve_flags(best[0].setting)])
    if not best[0].is_legal:
        where = "on the server" if legal else "in the simulator"
        about = f"no setting is legal: of the nearest, {where}, {best[0].worst[1]}"
        print_lines(
            stdout_console(), ["", f"{about}: lower --rate or raise the SLO", f"the nearest: {flags}"]
        )
        return EXIT_FAILED
    print(f"\n{program()} serve {flags}")
    return 0


def _step_times(args: Namespace, folder: Path) -> Path:
    """A file with the step times of this machine."""
    log(f"we measure the step times of {shown_model(args.model)} ...")
    file, loaded = folder / STEP_TIMES, model_options.load_from_args(args)
    max_len = min(loaded.model.config.max_position_embeddings, MAX_LEN)
    steps, llm = THOROUGH.steps(max_len, MAX_CHUNK), load_serving(args.solution)
    samples = calibrate(loaded.model, llm, steps, limit_s=math.inf)
    # Without corrections, which follow a machine that changes while it serves.
    fitted = calibration_json(llm.StepTimeModel(samples, newest=0.0))
    file.write_text(json.dumps(fitted) + "\n", encoding="utf-8")
    log(f"wrote {file}: with --calibration you need not measure again")
    return file


def _simulated(llm: Scheduling, settings: Sequence[Setting], cost: StepCost) -> Iterator[Result]:
    log(f"{plural(len(settings), 'setting')} in the simulator ...")
    remaining = Remaining(len(settings))
    for budget, group in groupby(settings, attrgetter("budget")):
        for setting in group:
            yield Result.simulated(setting, simulate(llm, setting, cost))
            place = remaining.done()
        log(f"  budget {budget}: {place}")


def _measured(setup: LabSetup, settings: Sequence[Setting], traffic: Sequence[Request]) -> Iterator[Result]:
    """The same traffic on a server for each; its first requests, with other tokens, are a warm-up."""
    remaining = Remaining(len(settings))
    for setting in settings:
        variant = Variant(" ".join(_shown(setting)), serve_flags(setting))
        setup.send(variant, _requests(setup, traffic[:_WARM_UPS], len(traffic)))
        yield Result.measured(setting, setup.send(variant, _requests(setup, traffic, 0)))
        log(f"  {variant.name}: {remaining.done()}")


def _requests(setup: LabSetup, traffic: Sequence[Request], seed: int) -> list[LoadRequest]:
    return [
        setup.request(each.prompt_len, each.max_tokens, each.kind, each.arrival_s, seed + number)
        for number, each in enumerate(traffic)
    ]


def _cells(result: Result) -> list[str]:
    latencies = ["-" if each is None else f"{each:.1f}" for each in (result.ttft_ms, result.itl_ms)]
    verdict = "met" if result.is_legal else "missed"
    return [*_shown(result.setting), *latencies, verdict, f"{result.goodput:.3f}"]


def _shown(setting: Setting) -> list[str]:
    return [setting.budget, str(setting.threshold or "off"), str(setting.max_num_seqs)]
