"""What the engine tells the latency policy, and what it lets the step-time model learn."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from .latency_policy import DecodeWork, LatencyPolicy, PrefillWork
from .step_time import context_work

if TYPE_CHECKING:
    from .engine_request import EngineRequest

# Prompts that are looked at: behind the first few nobody gets a token of this step.
_LOOK_AHEAD = 16


class StepPacer:
    """Asks a `LatencyPolicy` for the budget of every step, and corrects its model by what steps take."""

    def __init__(self, policy: LatencyPolicy) -> None:
        """Sets policy."""
        self.policy = policy

    def token_budget(self, now_s: float, requests: Mapping[str, "EngineRequest"]) -> int | None:
        """The budget of the next step for `requests`, in the order in which they came; None = no limit."""
        decodes, prefills = [], []
        for request in requests.values():
            each = request.scheduled
            if each.is_decoding:
                decodes.append(
                    DecodeWork(each.num_computed_tokens, request.last_token_s, each.is_batch_class)
                )
            else:
                missing = each.num_tokens - each.num_computed_tokens
                prefills.append(
                    PrefillWork(each.num_computed_tokens, missing, each.arrival_s, each.is_batch_class)
                )
        return self.policy.token_budget(now_s, decodes, list(islice(prefills, _LOOK_AHEAD)))

    def record(self, parts: Sequence[tuple[Sequence[int], int, int]], seconds: float) -> None:
        """Learn from a step over `parts`, (block_ids, num_computed_tokens, num_new_tokens) each."""
        num_tokens = sum(new for _, _, new in parts)
        num_attended = sum(context_work(computed, new) for _, computed, new in parts)
        num_stored = sum(computed + new for _, computed, new in parts)
        if num_tokens and seconds > 0:  # a coarse clock may not see a step
            self.policy.model.record(num_tokens, num_attended, num_stored, seconds)
