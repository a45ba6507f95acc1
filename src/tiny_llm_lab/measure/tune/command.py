"""`tune`: the settings of a server for this machine, found in the simulator and checked on real servers."""

import json
import math
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final

from tiny_llm_lab.measure.bench.flags import random_bits, shown_model
from tiny_llm_lab.measure.labs.server import OwnServers, Variant, serve_arguments
from tiny_llm_lab.measure.labs.setup import LabSetup
from tiny_llm_lab.measure.report.plan import STEP_TIMES
from tiny_llm_lab.measure.simulate.cost import StepCost, calibration_json, load_calibration
from tiny_llm_lab.measure.simulate.run import simulate
from tiny_llm_lab.measure.simulate.setting import Setting
from tiny_llm_lab.measure.traffic.request import LoadRequest, Request
from tiny_llm_lab.measure.tune.grid import serve_flags, settings_of
from tiny_llm_lab.measure.tune.result import Result, ranked
from tiny_llm_lab.runtime.console.field_flags import (
    add_field_flags,
    at_least,
    at_least_one,
    flag,
    flags_in,
    given_fields,
)
from tiny_llm_lab.runtime.console.new_folder import new_folder
from tiny_llm_lab.runtime.console.program import program
from tiny_llm_lab.runtime.console.remaining import Remaining
from tiny_llm_lab.runtime.console.tables import KEEP, Column, print_lines, print_table, stdout_console
from tiny_llm_lab.runtime.console.talk import EXIT_FAILED, log, plural
from tiny_llm_lab.runtime.solution import Scheduling, load_scheduling, load_serving
from tiny_llm_lab.runtime.steps.calibration import MAX_CHUNK, MAX_LEN, THOROUGH, calibrate
from tiny_llm_lab.serving.options.model_options import (
    add_kernel_arguments,
    add_model_arguments,
    load_from_args,
    model_name,
)

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
    calibration: Path | None = flag(
        None,
        "file with measured step times, from report or bench-engine --calibration-out (default: we measure)",
        metavar="FILE",
        alias="--machine",
    )


def add_arguments(parser: ArgumentParser) -> None:
    add_model_arguments(parser)
    add_kernel_arguments(parser)
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
    model = model_name(args)
    own = serve_arguments(args, model, base.max_model_len)
    legal = [] if args.no_check else [each for each in best[:_NUM_CHECKED] if each.is_legal]
    if legal:
        log(f"the traffic on a real server for each of the best {len(legal)} ...")
        with OwnServers(own, folder / "servers", one_at_a_time=True) as servers:
            setup = LabSetup(servers, model, folder, max_model_len=base.max_model_len, seed=base.seed)
            found = [*_measured(setup, [each.setting for each in legal], requests)]
        pairs = zip(legal, found, strict=True)
        rows = [[side, *_cells(each)] for pair in pairs for side, each in zip(_SIDES, pair, strict=True)]
        print()
        print_table([Column("", KEEP, is_left=True), *COLUMNS], rows)
        best = ranked(found)
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
    file, loaded = folder / STEP_TIMES, load_from_args(args, random_bits(model_name(args)))
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
