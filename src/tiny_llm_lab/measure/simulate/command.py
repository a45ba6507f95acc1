"""`simulate`: replay traffic through the scheduler of a solution, under a virtual clock."""

import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Final

from tiny_llm_lab.measure.simulate.run import Outcome, simulate
from tiny_llm_lab.measure.simulate.setting import Setting, StepCost
from tiny_llm_lab.runtime.console.field_flags import add_field_flags, given_fields
from tiny_llm_lab.runtime.console.tables import KEEP, Column, print_table
from tiny_llm_lab.runtime.console.talk import log
from tiny_llm_lab.runtime.metrics import Spread
from tiny_llm_lab.runtime.solution import load_scheduling
from tiny_llm_lab.types.packages import PACKAGES

HELP = "Replay traffic through a scheduler under a virtual clock, and show latencies and goodput."

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
    add_field_flags(parser, Setting)
    add = parser.add_argument
    about = "whose scheduler to use: yours or the reference's (default: %(default)s)"
    add("--solution", default="ref", choices=list(PACKAGES), help=about)
    add("--sweep", nargs="+", default=[], help="show a row for each of these budgets and for slo")
    add("--json", action="store_true", help="print one JSON document instead of the table")


def run(args: Namespace) -> int:
    llm = load_scheduling(args.solution)
    setting = Setting(**given_fields(args, Setting))
    budgets = [*args.sweep, "slo"] if args.sweep else [setting.budget]
    settings = [replace(setting, budget=budget) for budget in budgets]
    for each in settings:
        each.scheduler()  # refuses a budget before the first run
    cost = setting.step_cost()
    if setting.calibration is None:
        log(
            f"step times are estimated, not measured: {setting.shape} at {setting.gb_s:g} GB/s, "
            f"{setting.tflop_s:g} TFLOP/s, {setting.overhead_ms:g} ms overhead"
        )
    runs = []
    for each in settings:
        started = time.perf_counter()
        runs.append((each, simulate(llm, each, cost)))
        log(f"budget {each.budget}: {time.perf_counter() - started:.1f} s, {runs[-1][1].num_steps} steps")
    if args.json:
        print(json.dumps(_document(runs, cost, args, setting)))
        return 0
    print_table(COLUMNS, [outcome_row(*each) for each in runs])
    return 0


def _document(
    runs: Sequence[tuple[Setting, Outcome]], cost: StepCost, args: Namespace, setting: Setting
) -> dict[str, object]:
    settings = vars(args) | asdict(setting)
    return {
        "settings": {key: settings[key] for key in settings if key not in ("command", "json", "calibration")},
        "step_cost": asdict(cost),
        "runs": [{"budget": each.budget, "rate": each.rate} | asdict(result) for each, result in runs],
    }
