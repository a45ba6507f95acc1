"""One step of the engine: a forward pass over the packed tokens of all requests it serves."""

from collections.abc import Sequence

from tiny_llm_lab.types import PagedModel, StepPlan
from tiny_llm_lab.types.computing.paged import PagedCache

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

        Does not wait for the result; logits are computed only for rows that are sampled. `previous` (from
        task 3.6.8 on) is the step before, which is still being computed: the input of each request is the
        one token that it samples there. Sets plan, requests, start_s; parts, (block_ids,
        num_computed_tokens, num_new_tokens) of each request; sampled [n] uint32, lazily, drawn from what the
        processors of a request (from task 3.6.9 on) make of its rows; and scores (from task 3.6.7 on), by
        request, what `score_tokens` found for requests that asked for logprobs.
        """
        raise NotImplementedError("task 3.6.2")

    def read(self) -> dict[RequestState, list[int]]:
        """Wait for the step; return the sampled tokens of each request whose known tokens are computed now.

        These are one token more than the request has draft tokens in this step.
        """
        raise NotImplementedError("task 3.6.2")
