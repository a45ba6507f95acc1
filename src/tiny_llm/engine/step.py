"""One step of the engine: a forward pass over the packed tokens of all requests it serves."""

from collections.abc import Sequence

from tiny_llm_lab.types import PagedModel, StepPlan
from tiny_llm_lab.types.paged import PagedCache

from .request_state import RequestState


class EngineStep:
    """A planned step, which the device computes from its construction on."""

    def __init__(
        self,
        model: PagedModel,
        kv_cache: PagedCache,
        plan: StepPlan,
        requests: Sequence[RequestState],
        start_s: float,
        previous: "EngineStep | None" = None,
    ) -> None:
        """Launch one forward pass over the tokens that `plan` has for `requests`, which are in its order.

        Does not wait for the result, and the head computes only the rows that are sampled. `previous`
        (from task 3.6.8 on) is the step before, which is still being computed: each request takes the
        one token that it samples there. Sets plan, requests, start_s; parts, (block_ids,
        num_computed_tokens, num_new_tokens) of each request; sampled [n] uint32, lazily; and scores, by
        request, what `score_tokens` found for requests that asked for logprobs.
        """
        raise NotImplementedError("task 3.6.2")

    def read(self) -> dict[RequestState, list[int]]:
        """Wait for the step; the tokens sampled for each request whose known tokens are all computed now.

        One token for each of its rows: a single one without a draft.
        """
        raise NotImplementedError("task 3.6.2")
