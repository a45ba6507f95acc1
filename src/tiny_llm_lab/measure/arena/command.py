"""`arena`: a scheduler and a latency policy against the reference's, on fixed traffics."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import replace
from statistics import mean
from typing import Final

from tiny_llm_lab.measure.arena.contest import NUM_RUNS, Contest, Run, hold
from tiny_llm_lab.measure.arena.traffics import TRAFFICS
from tiny_llm_lab.measure.simulate.setting import Setting
from tiny_llm_lab.runtime.console.borrow_option import add_borrow
from tiny_llm_lab.runtime.console.field_flags import Flag, add_field_flags
from tiny_llm_lab.runtime.console.remaining import Remaining
from tiny_llm_lab.runtime.console.tables import KEEP, Column, print_table
from tiny_llm_lab.runtime.console.talk import log
from tiny_llm_lab.runtime.metrics import Spread
from tiny_llm_lab.runtime.solution import load_scheduling
from tiny_llm_lab.types.packages import PACKAGES

HELP = "Let your scheduler compete with fcfs, fair, slo and the best static budget in a simulation."
EXAMPLES: Final = (
    ("--solution mine", "your scheduler with your latency policy"),
    ("--solution mine --policy fair --max-num-batched-tokens 512", "your fair shares with a fixed budget"),
)

_ENTRANT_FLAGS: Final = (
    Flag("policy", "which requests of the entrant are scheduled first (default: fcfs)", "KIND"),
    Flag(
        "budget",
        "the entrant's token budget, or slo to let its latency policy choose (default: slo)",
        alias="--max-num-batched-tokens",
    ),
    Flag("threshold", "most prompt tokens of a request of the entrant in a step; 0 is off"),
)
_COLUMNS: Final = (
    Column("traffic", KEEP, is_left=True),
    Column("scheduler", KEEP, is_left=True),
    Column("goodput\nreq/s", KEEP),
    Column("of best\nstatic", 80),
    Column("TTFT\np99 ms", 60),
    Column("ITL\np99 ms", 70),
    Column("worst\nslowdown", 50),
    Column("points", KEEP),
)
_SCORED: Final = (
    "points: 75 times the goodput and 25 times the worst slowdown, each compared with the best static "
    "budget's, which has 100; the slowdown counts as 1 at most. The score is the mean of the points."
)


def add_arguments(parser: ArgumentParser) -> None:
    add_field_flags(parser, Setting, _ENTRANT_FLAGS)
    about = "whose scheduler competes: yours or the reference's (default: %(default)s)"
    parser.add_argument("--solution", default="ref", choices=list(PACKAGES), help=about)
    add_borrow(parser)


def run(args: Namespace) -> int:
    llm, ref = load_scheduling(args.solution), load_scheduling("ref")
    names = [flag.field for flag in _ENTRANT_FLAGS]
    changes = {"budget": "slo"} | {name: value for name, value in vars(args).items() if name in names}
    remaining = Remaining(NUM_RUNS * len(TRAFFICS))
    contests = {}
    for traffic, setting in TRAFFICS.items():
        entrant = (args.solution, llm, replace(setting, **changes))
        entrant[2].scheduler()  # refuses a budget before the first run
        ran = lambda name, of=traffic: log(f"{of}, {name}: {remaining.done()}")  # noqa: E731
        contests[traffic] = hold(setting, entrant, ref, ran)
    rows = [_row(traffic, contest, each) for traffic, contest in contests.items() for each in _shown(contest)]
    print_table(_COLUMNS, rows)
    log(_SCORED)
    print(conclusion(args.solution, contests))
    return 0


def score(contests: Mapping[str, Contest]) -> float:
    """The entrant's, where the best static budget of each traffic has 100."""
    return mean(contest.points(contest.entrant) for contest in contests.values())


def conclusion(name: str, contests: Mapping[str, Contest]) -> str:
    """The entrant's score, and where its goodput is lowest and highest compared with the best budget's."""
    by_gain = sorted(contests.items(), key=lambda item: item[1].gain(item[1].entrant))
    worst, best = (_compared(*item) for item in (by_gain[0], by_gain[-1]))
    return f"{name} scores {score(contests):.0f}: its goodput is {worst} and {best}"


def _compared(traffic: str, contest: Contest) -> str:
    percent = round(100 * contest.gain(contest.entrant))
    how = "equal to" if not percent else f"{abs(percent)} % {'above' if percent > 0 else 'below'}"
    return f"{how} the best static budget ({contest.best.name}) on {traffic}"


def _shown(contest: Contest) -> list[Run]:
    named = {"fcfs": contest.fcfs, "best static": contest.best}
    static = [replace(each, name=f"{name} {each.name}") for name, each in named.items()]
    return [contest.entrant, *static, contest.fair, contest.slo]


def _row(traffic: str, contest: Contest, each: Run) -> list[str]:
    found = each.outcome
    return [
        traffic,
        each.name,
        f"{found.goodput:.3f}",
        f"{1 + contest.gain(each):.0%}",
        _ms(found.ttft),
        _ms(found.itl),
        f"{each.slowdown:.1f}",
        f"{contest.points(each):.0f}",
    ]


def _ms(spread: Spread | None) -> str:
    return f"{spread.p99_s * 1e3:.0f}" if spread else "-"
