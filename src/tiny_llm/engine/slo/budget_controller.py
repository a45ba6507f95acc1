"""The token budget of each step from a latency policy, and the step times it learns from."""

from collections.abc import Callable, Sequence

from tiny_llm_lab.types import Slice

from ..scheduler import Scheduler
from .latency_policy import LatencyPolicy


class BudgetController:
    """Asks a `LatencyPolicy` for the budget of every step, and records measured times in its model."""

    def __init__(self, policy: LatencyPolicy) -> None:
        """Sets policy."""
        raise NotImplementedError("task 3.8.3")

    def token_budget(
        self, now_s: float, scheduler: Scheduler, last_token_s: Callable[[str], float]
    ) -> int | None:
        """The token budget of the scheduler's next step; None = no limit, or no prompt to compute.

        The policy is asked about the sequences that can get tokens in this step, in the scheduler's order:
        by priority class, running before waiting, the waiting ones up to the free slots and tokens
        (max_num_seqs, max_num_batched_tokens). A decode takes one token and its draft, a prompt its missing
        tokens up to long_prefill_token_threshold. `last_token_s` returns the time of a request's last token.
        """
        raise NotImplementedError("task 3.8.3")

    def record(self, slices: Sequence[Slice], seconds: float) -> None:
        """Record how long a step took that computed `slices`."""
        raise NotImplementedError("task 3.8.3")
