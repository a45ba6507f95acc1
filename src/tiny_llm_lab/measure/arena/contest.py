"""One traffic, replayed through the entrant and through the reference's policies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from tiny_llm_lab.measure.arena.traffics import BUDGETS, USUAL
from tiny_llm_lab.measure.simulate.cost import StepCost
from tiny_llm_lab.measure.simulate.outcome import Outcome, outcome
from tiny_llm_lab.measure.simulate.run import replay
from tiny_llm_lab.measure.simulate.setting import Setting
from tiny_llm_lab.measure.traffic.request import Request
from tiny_llm_lab.runtime.metrics import worst_slowdown
from tiny_llm_lab.runtime.solution import Scheduling
from tiny_llm_lab.types import attention_tokens

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
