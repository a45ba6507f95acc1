"""`arena`: a scheduler and a latency policy against the reference's, on fixed traffics."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean
from typing import Final

from tiny_llm_lab.measure.simulate.run import Outcome, outcome, replay
from tiny_llm_lab.measure.simulate.setting import Setting, StepCost
from tiny_llm_lab.measure.traffic.request import Request
from tiny_llm_lab.runtime.console.field_flags import Flag, add_field_flags, given_fields
from tiny_llm_lab.runtime.console.tables import KEEP, Column, print_table
from tiny_llm_lab.runtime.console.talk import Remaining, log
from tiny_llm_lab.runtime.metrics import Spread, worst_slowdown
from tiny_llm_lab.runtime.solution import Scheduling, load_scheduling
from tiny_llm_lab.types import attention_tokens
from tiny_llm_lab.types.packages import PACKAGES

# The rates are near what the best static budget can serve: far below it every policy is good, and far above
# it every policy is late.
TRAFFICS: Final[Mapping[str, Setting]] = {
    "mixed": Setting(requests=600, rate=1.8, lengths="sharegpt", seed=1),
    "bursty": Setting(requests=1000, rate=18.0, burstiness=0.2, lengths="chat", seed=2),
    "uniform": Setting(requests=600, rate=2.1, lengths="fixed:4096:128", seed=3),
    "documents": Setting(requests=600, rate=2.0, lengths="documents", seed=4),
}
BUDGETS: Final = ("128", "256", "384", "512")
USUAL: Final = Setting.budget  # of fcfs and fair


NUM_RUNS: Final = 1 + len(BUDGETS) + 2  # of a traffic: the entrant, static budgets, fair and slo
# Points for as many requests inside both SLOs as with the best static budget; the rest is for fairness. We
# do not compare goodput: all runs have the same requests, and one that lets answers take what the SLO allows
# only ends later.
_OF_GOOD: Final = 75


@dataclass(frozen=True)
class Run:
    """How one scheduler did: its name, its numbers, and its worst slowdown (see `metrics`)."""

    name: str
    outcome: Outcome
    slowdown: float


@dataclass(frozen=True)
class Contest:
    """The runs of one traffic, by its name."""

    traffic: str
    entrant: Run
    static: Sequence[Run]  # by their budgets
    fair: Run
    slo: Run

    @cached_property
    def best(self) -> Run:
        """The static budget with the most requests inside both SLOs; of equal ones the fairest."""
        return max(self.static, key=lambda run: (run.outcome.attainment, -run.slowdown))

    @property
    def fcfs(self) -> Run:
        """The static budget that `simulate` has unless you choose one."""
        return next(run for run in self.static if run.name == USUAL)

    def gain(self, run: Run) -> float:
        """How many more requests are inside both SLOs than with the best static budget; -0.03: 3 % fewer."""
        return run.outcome.attainment / self.best.outcome.attainment - 1

    def points(self, run: Run) -> float:
        """100 for the best static budget: 75 * its good requests, and 25 less as the worst slowdown grows."""
        fairness = min(1.0, self.best.slowdown / run.slowdown)
        return _OF_GOOD * (1 + self.gain(run)) + (100 - _OF_GOOD) * fairness


def hold(
    traffic: tuple[str, Setting],
    entrant: tuple[str, Scheduling, Setting],
    ref: Scheduling,
    ran: Callable[[str], None],
) -> Contest:
    """Replay a traffic, a name and its setting, through all; the entrant has a name, a solution, its setting.

    `ran` is told of each run that has ended.
    """
    title, setting = traffic
    cost = setting.step_cost()
    alone_s = {request: seconds_alone(request, cost) for request in set(setting.traffic())}

    def run(name: str, llm: Scheduling, chosen: Setting) -> Run:
        stats = replay(llm, chosen, cost)
        slowdown = worst_slowdown((each.timing, alone_s[each.request]) for each in stats.finished)
        ran(f"{title}, {name}")
        return Run(name, outcome(stats, chosen.slo), slowdown)

    return Contest(
        title,
        run(*entrant),
        [run(budget, ref, replace(setting, budget=budget)) for budget in BUDGETS],
        run("fair", ref, replace(setting, policy="fair", budget=USUAL)),
        run("slo", ref, replace(setting, budget="slo")),
    )


def seconds_alone(request: Request, cost: StepCost) -> float:
    """The E2E of a request that has the machine to itself: its prompt in one step, then a step a token."""
    num_prompt = request.prompt_len
    seconds = cost.seconds(num_prompt, attention_tokens(0, num_prompt), num_prompt)
    for stored in range(num_prompt + 1, num_prompt + request.max_tokens):
        seconds += cost.seconds(1, stored, stored)
    return seconds


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
    lead = round(score(contests)) - round(mean(each.points(each.slo) for each in contests))
    beats = f" and beats the reference's policy by {lead}" if lead > 0 else ""
    return f"{name} scores {score(contests):.0f}{beats}: it keeps the SLOs of {lowest}, and of {highest}"


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
