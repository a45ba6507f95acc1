"""All that a simulated run depends on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tiny_llm_lab.types import SchedulerConfig

from .cost import StepCost
from .outcome import Slo
from .traffic import LengthKind, SimRequest, draw_requests

Budget = int | Literal["slo"]
Route = Literal["round-robin", "least-loaded"]
ROUTES: Final[tuple[Route, ...]] = ("round-robin", "least-loaded")


@dataclass(frozen=True)
class ReplicaConfig:
    """A replica: its scheduler's limits, its memory, and the time that its steps take."""

    scheduler: SchedulerConfig
    num_blocks: int
    block_size: int
    cost: StepCost
    noise: float = 0.0  # standard deviation of the logarithm of a step's time
    seed: int = 0
    fast_forward: bool = True  # skip through steps in which nothing but time changes


@dataclass(frozen=True)
class SimulationConfig:
    """One run. The same configuration gives the same outcome to the last digit."""

    replica: ReplicaConfig
    num_replicas: int
    route: Route
    budget: Budget  # replaces max_num_batched_tokens; with "slo" that is the largest budget
    slo: Slo
    safety: float | None  # factor on predicted step times; None: from the prediction errors
    num_requests: int
    rate: float  # requests per second, over all replicas
    burstiness: float
    lengths: Sequence[LengthKind]
    seed: int
    batch_share: float  # of the requests and of the rate

    def requests(self) -> list[SimRequest]:
        """The requests of the run, in order of arrival."""
        replica = self.replica
        max_len = min(replica.scheduler.max_model_len, replica.num_blocks * replica.block_size)
        return draw_requests(
            self.num_requests, self.rate, self.burstiness, self.lengths, self.seed, max_len, self.batch_share
        )
