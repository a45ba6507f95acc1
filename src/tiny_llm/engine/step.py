"""One step of the engine: a forward pass over the packed tokens of all requests it serves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx

from tiny_llm_lab.types import PagedModel, StepPlan
from tiny_llm_lab.types.computing.paged import PagedCache, Slice

from .request_state import RequestState


@dataclass(frozen=True, eq=False)
class InflightStep:
    """A launched step, which the device computes while Python does other work."""

    plan: StepPlan
    requests: Sequence[RequestState]  # in the order of the plan
    start_s: float
    slices: Sequence[Slice]  # what it computes of each request
    sampled: mx.array  # [n] uint32, lazily: the tokens of all sampled rows
    # What `score_tokens` returned, lazily, for requests that want logprobs (from task 3.7.1 on; {} before).
    scores: Mapping[RequestState, Sequence[mx.array]]
    is_late: bool  # whether `sample_late` has yet to draw the tokens (from task 3.7.3 on; False before)

    def read(self) -> dict[RequestState, list[int]]:
        """Wait for the step; return the sampled tokens of each request whose known tokens are now computed.

        Each request has one sampled token more than draft tokens in this step.
        """
        raise NotImplementedError("task 3.6.2")


def launch(
    model: PagedModel,
    kv_cache: PagedCache,
    plan: StepPlan,
    requests: Sequence[RequestState],
    start_s: float,
    previous: InflightStep | None = None,
) -> InflightStep:
    """Launch one forward pass over the tokens that `plan` has for `requests`, which are in its order.

    Does not wait for the result, and does not run the model for no request. Computes logits only for rows
    that are sampled, and samples from them after the request's processors (from task 3.7.3 on). `previous`
    (from task 3.7.2 on) is the step before, which is still being computed: the input of each request is the
    token that it samples there.
    """
    raise NotImplementedError("task 3.6.2")


def sample_late(step: InflightStep) -> InflightStep:
    """Returns a late step with its tokens drawn, lazily, once the step before it is committed.

    A request whose answer has ended since the launch gets a token that nobody reads, without its processors.
    """
    raise NotImplementedError("task 3.7.3")
