"""The token budget of each step, from a latency policy, and the step times that the policy learns from."""

from collections.abc import Callable, Sequence

from tiny_llm_lab.types import Slice

from ..scheduler import Scheduler
from .latency_policy import LatencyPolicy


class BudgetController:
    """Asks a `LatencyPolicy` for the budget of each step, and records measured times in its model."""

    def __init__(self, policy: LatencyPolicy) -> None:
        """Sets policy."""
        raise NotImplementedError("task 3.8.3")

    def token_budget(
        self, now_s: float, scheduler: Scheduler, last_token_s: Callable[[str], float]
    ) -> int | None:
        """Returns the token budget of the scheduler's next step; None = no limit, or no prompt to compute.

        The policy gets the sequences that can get tokens in this step, in the scheduler's order: by priority
        class, running before waiting, and waiting sequences only up to max_num_seqs and
        max_num_batched_tokens. A decode takes one token and its draft; a prompt takes its missing tokens up
        to long_prefill_token_threshold. `last_token_s` returns the time of a request's last token.
        """
        raise NotImplementedError("task 3.8.3")

    def record(self, slices: Sequence[Slice], seconds: float) -> None:
        """Record how many seconds a step with `slices` took."""
        raise NotImplementedError("task 3.8.3")
