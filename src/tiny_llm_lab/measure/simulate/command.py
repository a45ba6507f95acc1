"""`simulate`: replay traffic through the scheduler of a solution, under a virtual clock."""

import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from typing import Final

from tiny_llm_lab.measure.simulate.cluster import find_capacity, simulate
from tiny_llm_lab.measure.simulate.cost import StepCost
from tiny_llm_lab.measure.simulate.outcome import Outcome
from tiny_llm_lab.measure.simulate.setting import Setting, add_setting_flags
from tiny_llm_lab.runtime.console.borrow_option import add_borrow
from tiny_llm_lab.runtime.console.tables import KEEP, Column, print_table
from tiny_llm_lab.runtime.console.talk import log
from tiny_llm_lab.runtime.metrics import Spread
from tiny_llm_lab.runtime.solution import Scheduling, load_scheduling
from tiny_llm_lab.types import UserError
from tiny_llm_lab.types.packages import PACKAGES

HELP = "Replay traffic through a solution's scheduler under a virtual clock: latencies, goodput and capacity."

# The book reads ITL p99 first, then goodput; on a narrow terminal the columns of least priority are left out.
_COLUMNS: Final[Sequence[tuple[Column, Callable[[Setting, Outcome], str]]]] = (
    (Column("budget", KEEP), lambda setting, _: setting.budget),
    (Column("rate", 50), lambda setting, _: f"{setting.rate:.3g}"),
    (Column("TTFT\np50 ms", 40), lambda _, run: _ms(run.ttft, "p50_s")),
    (Column("TTFT\np99 ms", 70), lambda _, run: _ms(run.ttft, "p99_s")),
    (Column("ITL\np50 ms", 60), lambda _, run: _ms(run.itl, "p50_s")),
    (Column("ITL\np99 ms", KEEP), lambda _, run: _ms(run.itl, "p99_s")),
    (Column("ITL\nmax ms", 10), lambda _, run: _ms(run.itl, "max_s")),
    (Column("TPOT\np50 ms", 9), lambda _, run: _ms(run.tpot, "p50_s")),
    (Column("E2E\np99 s", 20), lambda _, run: f"{run.e2e.p99_s:.1f}" if run.e2e else "-"),
    (Column("SLO", KEEP), lambda setting, run: "met" if run.meets(setting.slo) else "missed"),
    (Column("in\nSLO", 80), lambda _, run: f"{run.attainment:.1%}"),
    (Column("goodput\nreq/s", KEEP), lambda _, run: f"{run.goodput:.3f}"),
    (Column("out\ntok/s", 30), lambda _, run: f"{run.output_tokens_per_s:.0f}"),
    # Of both classes; all others are of interactive requests.
    (Column("busy", 8), lambda _, run: f"{run.utilisation:.0%}"),
    (Column("tok/\nstep", 7), lambda _, run: f"{run.tokens_per_step:.0f}"),
    (Column("preempted", 6), lambda _, run: str(run.num_preemptions)),
)
COLUMNS: Final = tuple(column for column, _ in _COLUMNS)


def _ms(spread: Spread | None, name: str) -> str:
    return f"{getattr(spread, name) * 1e3:.1f}" if spread else "-"


def outcome_row(setting: Setting, outcome: Outcome) -> list[str]:
    """The cells of COLUMNS."""
    return [cell(setting, outcome) for _, cell in _COLUMNS]


def add_arguments(parser: ArgumentParser) -> None:
    add_setting_flags(parser)
    add = parser.add_argument
    add("--solution", default="ref", choices=list(PACKAGES), help="whose scheduler (default: %(default)s)")
    add_borrow(parser)
    add("--sweep", nargs="+", default=[], help="one row for each of these budgets, and for slo")
    add("--capacity", action="store_true", help="search the highest --rate with p99 inside both SLOs")
    add("--json", action="store_true", help="print one JSON document instead of the table")


def run(args: Namespace) -> int:
    llm = load_scheduling(args.solution)
    setting = Setting(**{each.name: getattr(args, each.name) for each in fields(Setting)})
    settings = [
        replace(setting, budget=budget) for budget in ([*args.sweep, "slo"] if args.sweep else [args.budget])
    ]
    for each in settings:
        each.scheduler()  # refuses a budget before the first run
    cost = setting.step_cost()
    if args.calibration is None:
        log(
            f"step times are assumed, not measured: {args.shape} at {args.gb_s:g} GB/s, "
            f"{args.tflop_s:g} TFLOP/s, {args.overhead_ms:g} ms overhead"
        )
    runs = []
    for each in settings:
        started = time.perf_counter()
        each = _at_capacity(llm, each, cost) if args.capacity else each
        runs.append((each, simulate(llm, each, cost)))
        log(f"budget {each.budget}: {time.perf_counter() - started:.1f} s, {runs[-1][1].num_steps} steps")
    if args.json:
        print(json.dumps(_document(runs, cost, args)))
        return 0
    print_table(COLUMNS, [outcome_row(*each) for each in runs])
    for each, outcome in runs:
        if batch := outcome.batch:
            print(
                f"batch class, budget {each.budget}: {batch.num_requests} requests finished, "
                f"{batch.output_tokens_per_s:.0f} out tok/s, {batch.num_preemptions} preempted"
            )
    return 0


def _at_capacity(llm: Scheduling, setting: Setting, cost: StepCost) -> Setting:
    """`setting` at the highest rate that meets the SLOs."""

    def is_inside(rate: float) -> bool:
        return simulate(llm, replace(setting, rate=rate), cost).meets(setting.slo)

    rate = find_capacity(is_inside, first_rate=setting.rate)
    if not 0 < rate < float("inf"):
        bound = "no rate is low enough" if rate == 0 else "every rate is low enough"
        raise UserError(
            f"budget {setting.budget}: {bound} for the SLOs: change --itl-slo-ms or --ttft-slo-ms"
        )
    return replace(setting, rate=rate)


def _document(runs: Sequence[tuple[Setting, Outcome]], cost: StepCost, args: Namespace) -> dict[str, object]:
    left_out = ("command", "json", "calibration")
    return {
        "settings": {key: value for key, value in vars(args).items() if key not in left_out},
        "step_cost": asdict(cost),  # type: ignore[call-overload]
        "runs": [{"budget": each.budget, "rate": each.rate} | asdict(found) for each, found in runs],
    }
