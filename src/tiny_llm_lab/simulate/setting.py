"""One configuration to be simulated, and the one function that does it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from tiny_llm_lab.solution import Scheduling
from tiny_llm_lab.steps.shapes import StepGrid, work_of
from tiny_llm_lab.types import SchedulerConfig

from .cluster import Route, replay
from .cost import StepCost
from .machine import Machine
from .outcome import Outcome, Slo, outcome
from .traffic import LengthKind, SimRequest, draw_requests

Budget = int | Literal["slo"]
_CALIBRATED: Final = StepGrid(
    stored=(0, 512, 2048, 8192),
    decodes=(1, 4, 16, 48),
    chunks=(16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048),
    mixed=tuple((count, new) for count in (1, 4, 16, 48) for new in (64, 256, 1024)),
)


@dataclass(frozen=True)
class Setting:
    """All that a simulated run depends on. The same setting gives the same outcome to the last digit."""

    num_requests: int
    rate: float  # requests per second, of all replicas together
    burstiness: float
    lengths: Sequence[LengthKind]
    seed: int
    batch_share: float  # of the requests and of the rate
    num_replicas: int
    route: Route
    budget: Budget
    config: SchedulerConfig  # max_num_batched_tokens is what "slo" may take at most; a number replaces it
    num_blocks: int
    block_size: int
    cost: StepCost
    slo: Slo
    safety: float | None  # None: what the model gets wrong decides
    noise: float
    fast_forward: bool

    def requests(self) -> list[SimRequest]:
        limit = min(self.config.max_model_len, self.num_blocks * self.block_size)
        return draw_requests(
            self.num_requests, self.rate, self.burstiness, self.lengths, self.seed, limit, self.batch_share
        )


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
    ledger = replay(
        setting.requests(),
        machine,
        setting.num_replicas,
        setting.route,
        setting.slo.itl_s,
        _pacers(llm, setting) if setting.budget == "slo" else lambda: None,
    )
    return outcome(ledger, setting.slo, setting.num_replicas)


def _pacers(llm: Scheduling, setting: Setting) -> Callable[[], Any]:
    """Makes pacers whose models are fitted to steps as a calibration would measure them."""
    steps = [work_of(llm.context_work, step) for step in _CALIBRATED.steps()]
    samples = [llm.StepSample(*work, setting.cost.seconds(*work)) for work in steps]

    def make_pacer() -> Any:
        model = llm.StepTimeModel(samples)
        return llm.StepPacer(
            llm.LatencyPolicy(model, setting.slo.itl_s, setting.slo.ttft_s, safety=setting.safety)
        )

    return make_pacer
