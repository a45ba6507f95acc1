"""One step of the engine: a forward pass over the packed tokens of all that it serves."""

from collections.abc import Sequence

from tiny_llm_lab.types import PagedModel, StepPlan

from ..cache.paged_kv_cache import PagedKvCache
from .request_state import EngineRequest


class EngineStep:
    """A planned step, which the device computes from its construction on."""

    def __init__(
        self,
        model: PagedModel,
        kv_cache: PagedKvCache,
        plan: StepPlan,
        requests: Sequence[EngineRequest],
        start_s: float,
        behind: "EngineStep | None" = None,
    ) -> None:
        """Begin one forward pass over the tokens that `plan` has for `requests`, which are in its order.

        Nobody waits for the result, and the head computes only the rows that are drawn from. `behind`
        (from task 3.4.10 on) is the step before, which is still being computed: each request takes the
        one token that it draws there. Sets plan, requests, start_s; parts, (block_ids, num_computed_tokens,
        num_new_tokens) of each request; drawn [n] uint32, lazily; and scores, by request, what
        `score_tokens` found for those that asked for logprobs.
        """
        raise NotImplementedError("task 3.4.6")

    def read(self) -> dict[EngineRequest, list[int]]:
        """Wait for the step; the tokens drawn for each request whose known tokens are all computed now.

        One for each of its rows: one without a guess.
        """
        raise NotImplementedError("task 3.4.6")
