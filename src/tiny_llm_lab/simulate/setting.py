"""One configuration to be simulated, and the one function that does it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tiny_llm_lab.solution import Scheduling
from tiny_llm_lab.types import SchedulerConfig

from .budget import SloBudget, TokenBudget, measured_steps
from .cluster import Route, replay
from .cost import StepCost
from .outcome import Outcome, Slo, outcome
from .replica import Machine
from .traffic import LengthKind, SimRequest, draw_requests

Budget = int | Literal["slo"]


@dataclass(frozen=True)
class Setting:
    """All that a simulated run depends on. The same setting gives the same outcome to the last digit."""

    num_requests: int
    rate: float  # requests per second, of all replicas together
    burstiness: float
    lengths: Sequence[LengthKind]
    seed: int
    num_replicas: int
    route: Route
    budget: Budget
    config: SchedulerConfig  # max_num_batched_tokens is what "slo" may take at most; a number replaces it
    num_blocks: int
    block_size: int
    cost: StepCost
    slo: Slo
    safety: float
    noise: float
    fast_forward: bool

    def requests(self) -> list[SimRequest]:
        limit = min(self.config.max_model_len, self.num_blocks * self.block_size)
        return draw_requests(self.num_requests, self.rate, self.burstiness, self.lengths, self.seed, limit)


def simulate(llm: Scheduling, setting: Setting) -> Outcome:
    """Replay the requests of `setting` with the scheduler of `llm`."""
    config = setting.config
    if setting.budget != "slo":
        config = replace(config, max_num_batched_tokens=setting.budget)
    machine = Machine(
        llm=llm,
        config=config,
        num_blocks=setting.num_blocks,
        block_size=setting.block_size,
        cost=setting.cost,
        noise=setting.noise,
        seed=setting.seed + 2,
        fast_forward=setting.fast_forward,
    )
    samples = list(measured_steps(llm, setting.cost)) if setting.budget == "slo" else []

    def make_budget() -> TokenBudget:
        if setting.budget != "slo":
            return TokenBudget()
        model = llm.StepTimeModel(samples)
        policy = llm.LatencyPolicy(model, setting.slo.itl_s, setting.slo.ttft_s, safety=setting.safety)
        return SloBudget(llm, policy, config)

    ledger = replay(
        setting.requests(), machine, make_budget, setting.num_replicas, setting.route, setting.slo.itl_s
    )
    return outcome(ledger, setting.slo, setting.num_replicas)
