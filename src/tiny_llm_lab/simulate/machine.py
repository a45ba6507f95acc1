"""The make of a replica: a solution's scheduler, its memory, and the time that its steps take."""

from dataclasses import dataclass

from tiny_llm_lab.solution import Scheduling
from tiny_llm_lab.types import SchedulerConfig

from .cost import StepCost


@dataclass(frozen=True)
class Machine:
    """What every replica is made of."""

    llm: Scheduling
    config: SchedulerConfig
    num_blocks: int
    block_size: int
    cost: StepCost
    noise: float = 0.0  # standard deviation of the logarithm of a step's time
    seed: int = 0
    fast_forward: bool = True  # skip through steps in which nothing can change
