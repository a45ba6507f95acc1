"""Requests over replicas: routing, one run, and the highest rate that stays inside the SLOs."""

import math
from collections.abc import Callable, Sequence
from typing import Final

from tiny_llm_lab.measure.simulate.cost import StepCost
from tiny_llm_lab.measure.simulate.outcome import Outcome, outcome
from tiny_llm_lab.measure.simulate.replica import Replica, ReplicaStats
from tiny_llm_lab.measure.simulate.setting import Setting
from tiny_llm_lab.measure.simulate.traffic import SimRequest
from tiny_llm_lab.runtime.solution import Scheduling
from tiny_llm_lab.runtime.steps.shapes import StepGrid, work_of
from tiny_llm_lab.types import StepSample
from tiny_llm_lab.types.scheduling.serving import BudgetController

_CALIBRATION_STEPS: Final = StepGrid(
    stored=(0, 512, 2048, 8192),
    decodes=(1, 4, 16, 48),
    chunks=(16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048),
    mixed=tuple((count, new) for count in (1, 4, 16, 48) for new in (64, 256, 1024)),
)
# The search gives up this far from the first rate, and stops when it is this close.
_LARGEST_FACTOR: Final = 2.0**14
_CLOSE_ENOUGH: Final = 1.02


def simulate(llm: Scheduling, setting: Setting, cost: StepCost) -> Outcome:
    """Replay the requests of `setting` with the scheduler of `llm`."""
    make_controller = _controllers(llm, setting, cost) if setting.fixed_budget is None else None
    return outcome(replay(llm, setting.traffic(), setting, cost, make_controller), setting.slo)


def replay(
    llm: Scheduling,
    requests: Sequence[SimRequest],
    setting: Setting,
    cost: StepCost,
    make_controller: Callable[[], BudgetController] | None = None,
) -> list[ReplicaStats]:
    """Send `requests`, in order of arrival, to the replicas, and run until all have finished.

    round-robin takes the replicas in turn; least-loaded the one with the fewest unfinished requests at the
    arrival, the first of equals. `make_controller` makes a replica's controller; None: budgets are fixed.
    """
    replicas = [
        Replica(llm, setting, cost, make_controller() if make_controller else None)
        for _ in range(setting.replicas)
    ]
    for request in requests:
        chosen = replicas[request.number % len(replicas)]
        if setting.route == "least-loaded":
            for replica in replicas:
                replica.run_until(request.arrival_s)
            chosen = min(replicas, key=lambda replica: replica.num_unfinished(request.arrival_s))
        chosen.submit(request)
    for replica in replicas:
        replica.run_until(math.inf)
    return [replica.stats for replica in replicas]


def find_capacity(is_inside: Callable[[float], bool], first_rate: float = 1.0) -> float:
    """The highest rate r with is_inside(r), at most 2 % too low, by doubling or halving, then bisecting.

    `is_inside` should hold below some rate and not above. 0.0 when it does not hold at a 16,384th of
    `first_rate`, infinity when it holds at 16,384 times as much.
    """
    good, bad, rate = 0.0, math.inf, first_rate
    while good == 0.0 or bad == math.inf:
        if is_inside(rate):
            good, rate = rate, rate * 2
        else:
            bad, rate = rate, rate / 2
        if good > first_rate * _LARGEST_FACTOR:
            return math.inf
        if bad < first_rate / _LARGEST_FACTOR:
            return 0.0
    while bad / good > _CLOSE_ENOUGH:
        rate = (good * bad) ** 0.5
        if is_inside(rate):
            good = rate
        else:
            bad = rate
    return good


def _controllers(llm: Scheduling, setting: Setting, cost: StepCost) -> Callable[[], BudgetController]:
    """Makes budget controllers, fitted to steps as a calibration would measure them."""
    works = [work_of(step) for step in _CALIBRATION_STEPS.steps()]
    samples = [StepSample(*work, cost.seconds(*work)) for work in works]
    slo = setting.slo

    def make_controller() -> BudgetController:
        model = llm.StepTimeModel(samples)
        return llm.BudgetController(llm.LatencyPolicy(model, slo.itl_s, slo.ttft_s, safety=setting.safety))

    return make_controller
