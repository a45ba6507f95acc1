"""The token budget of each step from a latency policy, and the step times it learns from."""

from collections.abc import Callable, Sequence

from ..scheduler import Scheduler
from .latency_policy import LatencyPolicy


class BudgetController:
    """Asks a `LatencyPolicy` for the budget of every step, and corrects its model by measured times."""

    def __init__(self, policy: LatencyPolicy) -> None:
        """Sets policy."""
        raise NotImplementedError("task 3.7.3")

    def token_budget(
        self, now_s: float, scheduler: Scheduler, last_token_s: Callable[[str], float]
    ) -> int | None:
        """The budget of the scheduler's next step; None = no limit, also when there is no prompt to compute.

        The policy is asked about running sequences, in the scheduler's order, then about waiting ones, as
        far as there are slots and tokens (max_num_seqs, max_num_batched_tokens): behind them none gets a
        token of this step. Priority classes come one after the other, as in the step. A decode takes its
        token and its draft, a prompt as much as long_prefill_token_threshold lets it. `last_token_s` tells
        for the id of a decode when its last token came.
        """
        raise NotImplementedError("task 3.7.3")

    def record(self, parts: Sequence[tuple[Sequence[int], int, int]], seconds: float) -> None:
        """Learn from a step over `parts`, (block_ids, num_computed_tokens, num_new_tokens) each."""
        raise NotImplementedError("task 3.7.3")
