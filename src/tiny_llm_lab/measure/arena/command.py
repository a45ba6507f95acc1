"""`arena`: a scheduler and a latency policy against the reference's, on fixed traffics."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import mean
from typing import Final

from tiny_llm_lab.measure.arena.contest import NUM_RUNS, Contest, Run, hold
from tiny_llm_lab.measure.arena.traffics import TRAFFICS
from tiny_llm_lab.measure.simulate.setting import Setting
from tiny_llm_lab.runtime.console.field_flags import Flag, add_field_flags, given_fields
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
# Of a traffic, a row for each of its runs.
_COLUMNS: Final[Sequence[tuple[Column, Callable[[Contest, Run], str]]]] = (
    (Column("traffic", KEEP, is_left=True), lambda contest, _: contest.traffic),
    (Column("scheduler", KEEP, is_left=True), lambda _, run: run.name),
    (Column("in\nSLOs", KEEP), lambda _, run: f"{run.outcome.attainment:.1%}"),
    (Column("of best\nstatic", 80), lambda contest, run: f"{1 + contest.gain(run):.0%}"),
    (Column("TTFT\np99 ms", 60), lambda _, run: _ms(run.outcome.ttft)),
    (Column("ITL\np99 ms", 70), lambda _, run: _ms(run.outcome.itl)),
    (Column("worst\nslowdown", 50), lambda _, run: f"{run.slowdown:.1f}"),
    (Column("points", KEEP), lambda contest, run: f"{contest.points(run):.0f}"),
)
_SCORED: Final = (
    "points: 75 times the requests inside both SLOs and 25 times the worst slowdown, each compared with the "
    "best static budget's, which has 100; the slowdown counts as 1 at most. The score is the mean."
)


def add_arguments(parser: ArgumentParser) -> None:
    add_field_flags(parser, Setting, _ENTRANT_FLAGS)
    about = "whose scheduler competes: yours or the reference's (default: %(default)s)"
    parser.add_argument("--solution", default="ref", choices=list(PACKAGES), help=about)


def run(args: Namespace) -> int:
    llm, ref = load_scheduling(args.solution), load_scheduling("ref")
    changes = {"budget": "slo"} | given_fields(args, Setting)
    entrants = {name: replace(setting, **changes) for name, setting in TRAFFICS.items()}
    for each in entrants.values():
        each.scheduler()  # refuses a budget before the first run
    remaining = Remaining(NUM_RUNS * len(TRAFFICS))
    contests = [
        hold(
            traffic,
            (args.solution, llm, entrants[traffic[0]]),
            ref,
            lambda what: log(f"{what}: {remaining.done()}"),
        )
        for traffic in TRAFFICS.items()
    ]
    rows = [[cell(each, run) for _, cell in _COLUMNS] for each in contests for run in _shown(each)]
    print_table([column for column, _ in _COLUMNS], rows)
    log(_SCORED)
    print(conclusion(contests))
    return 0


def score(contests: Iterable[Contest]) -> float:
    """The entrant's, where the best static budget of each traffic has 100."""
    return mean(contest.points(contest.entrant) for contest in contests)


def conclusion(contests: Sequence[Contest]) -> str:
    """The entrant's score, and where it is furthest below and above the best static budget."""
    by_gain = sorted(contests, key=lambda contest: contest.gain(contest.entrant))
    lowest, highest = _compared(by_gain[0]), _compared(by_gain[-1])
    name = by_gain[0].entrant.name
    return f"{name} scores {score(contests):.0f}: it keeps the SLOs of {lowest}, and of {highest}"


def _compared(contest: Contest) -> str:
    percent = round(100 * contest.gain(contest.entrant))
    how = f"{abs(percent)} % {'more' if percent > 0 else 'fewer'} requests than" if percent else "as many as"
    return f"{how} the best static budget ({contest.best.name}) on {contest.traffic}"


def _shown(contest: Contest) -> list[Run]:
    named = {"fcfs": contest.fcfs, "best static": contest.best}
    static = [replace(each, name=f"{name} {each.name}") for name, each in named.items()]
    return [contest.entrant, *static, contest.fair, contest.slo]


def _ms(spread: Spread | None) -> str:
    return f"{spread.p99_s * 1e3:.0f}" if spread else "-"
