"""What the engine tells the latency policy, and what it lets the step-time model learn."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .latency_policy import LatencyPolicy

if TYPE_CHECKING:
    from .engine_request import EngineRequest


class StepPacer:
    """Asks a `LatencyPolicy` for the budget of every step, and corrects its model by what steps take."""

    def __init__(self, policy: LatencyPolicy) -> None:
        """Sets policy."""
        raise NotImplementedError("task 3.5.3")

    def token_budget(self, now_s: float, requests: Mapping[str, "EngineRequest"]) -> int | None:
        """The budget of the next step for `requests`, in the order in which they came; None = no limit."""
        raise NotImplementedError("task 3.5.3")

    def record(self, parts: Sequence[tuple[Sequence[int], int, int]], seconds: float) -> None:
        """Learn from a step over `parts`, (block_ids, num_computed_tokens, num_new_tokens) each."""
        raise NotImplementedError("task 3.5.3")
