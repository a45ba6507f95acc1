"""Requests over replicas: routing, one run, and the highest rate that stays inside the SLOs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from tiny_llm_lab.solution import Scheduling
from tiny_llm_lab.steps.shapes import StepGrid, work_of
from tiny_llm_lab.types import StepSample
from tiny_llm_lab.types.serving import BudgetController

from .outcome import Outcome, outcome
from .replica import Replica
from .setting import ReplicaConfig, Route, SimulationConfig
from .stats import RunStats
from .traffic import SimRequest

_CALIBRATION_STEPS: Final = StepGrid(
    stored=(0, 512, 2048, 8192),
    decodes=(1, 4, 16, 48),
    chunks=(16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048),
    mixed=tuple((count, new) for count in (1, 4, 16, 48) for new in (64, 256, 1024)),
)
# The search gives up this far from the first rate, and stops when it is this close.
_LARGEST_FACTOR: Final = 2.0**14
_CLOSE_ENOUGH: Final = 1.02


def simulate(llm: Scheduling, config: SimulationConfig) -> Outcome:
    """Replay the requests of `config` with the scheduler of `llm`."""
    replica = config.replica
    make_controller = _controllers(llm, config) if config.budget == "slo" else None
    if config.budget != "slo":
        scheduler = replace(replica.scheduler, max_num_batched_tokens=config.budget)
        replica = replace(replica, scheduler=scheduler)
    stats = replay(
        llm, config.requests(), replica, config.num_replicas, config.route, config.slo.itl_s, make_controller
    )
    return outcome(stats, config.slo, config.num_replicas)


def replay(
    llm: Scheduling,
    requests: Sequence[SimRequest],
    config: ReplicaConfig,
    num_replicas: int,
    route: Route,
    itl_slo_s: float,
    make_controller: Callable[[], BudgetController] | None = None,
) -> RunStats:
    """Send `requests`, in order of arrival, to replicas of `config`, and run until all have finished.

    round-robin takes the replicas in turn; least-loaded the one with the fewest unfinished requests at the
    arrival, the first of equals. `make_controller` makes a replica's controller; None: budgets are fixed.
    """
    replicas = [
        Replica(llm, config, itl_slo_s, make_controller() if make_controller else None)
        for _ in range(num_replicas)
    ]
    for request in requests:
        if route == "round-robin":
            chosen = replicas[request.number % num_replicas]
            chosen.run_until(request.arrival_s)
        else:
            for replica in replicas:
                replica.run_until(request.arrival_s)
            chosen = min(replicas, key=lambda replica: replica.num_unfinished(request.arrival_s))
        chosen.submit(request)
    total = RunStats()
    for replica in replicas:
        replica.run_until(float("inf"))
        total.add(replica.stats)
    return total


def find_capacity(is_inside: Callable[[float], bool], first_rate: float = 1.0) -> float:
    """The highest rate r with is_inside(r), at most 2 % too low, by doubling or halving, then bisecting.

    `is_inside` should hold below some rate and not above. 0.0 when it does not hold at a 16,384th of
    `first_rate`, infinity when it holds at 16,384 times as much.
    """
    good, bad = 0.0, float("inf")
    rate = first_rate
    while good == 0.0 or bad == float("inf"):
        if is_inside(rate):
            good, rate = rate, rate * 2
        else:
            bad, rate = rate, rate / 2
        if good > first_rate * _LARGEST_FACTOR:
            return float("inf")
        if bad < first_rate / _LARGEST_FACTOR:
            return 0.0
    while bad / good > _CLOSE_ENOUGH:
        rate = (good * bad) ** 0.5
        if is_inside(rate):
            good = rate
        else:
            bad = rate
    return good


def _controllers(llm: Scheduling, config: SimulationConfig) -> Callable[[], BudgetController]:
    """Makes budget controllers, fitted to steps as a calibration would measure them."""
    steps = [work_of(step) for step in _CALIBRATION_STEPS.steps()]
    samples = [StepSample(*work, config.replica.cost.seconds(*work)) for work in steps]

    def make_controller() -> BudgetController:
        model, slo = llm.StepTimeModel(samples), config.slo
        return llm.BudgetController(llm.LatencyPolicy(model, slo.itl_s, slo.ttft_s, safety=config.safety))

    return make_controller
