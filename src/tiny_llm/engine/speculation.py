"""Speculation in the engine: which sequences get a draft, and how much of it is accepted."""

from collections.abc import Iterable, Sequence

from tiny_llm_lab.types import AllDrafts, Clock, Proposer, StepPlan

from .reading import Reading
from .request_state import RequestState
from .scheduler import Scheduler


class Speculation(Reading):
    """The drafts of an engine's requests, and their counters."""

    def __init__(
        self, proposer: Proposer, gate: AllDrafts, vocab_size: int, clock: Clock, is_timed: bool = False
    ) -> None:
        """`proposer` drafts for a model of `vocab_size` tokens. Sets stats, a `SpecDecodeStats`.

        `gate` (from task 3.9.7 on) chooses the lengths of drafts. It learns how long steps and drafts take,
        in seconds on `clock`. `is_timed`: whether `Reading` follows measured times too.
        """
        raise NotImplementedError("task 3.9.6")

    def draft(self, requests: Iterable[RequestState], scheduler: Scheduler) -> None:
        """Set spec_token_ids of the running `requests` that decode, before the step is planned.

        A sequence that already has some keeps them. The gate (from task 3.9.7 on) says how long a draft may
        be; nothing longer is drafted. A draft that is stored needs blocks first. It is cut at the first token
        outside the vocabulary, and where its tokens can't become part of the answer. A sequence that is
        behind with its reading (from task 3.9.7 on) has no draft yet.
        """
        raise NotImplementedError("task 3.9.6")

    def skips(self, requests: Sequence[RequestState]) -> bool:
        """Whether none of these requests would get a draft in the next step, if all of them decode then."""
        raise NotImplementedError("task 3.9.6")

    def accepted(self, request: RequestState, sampled: Sequence[int]) -> list[int]:
        """Count the draft, and (from task 3.9.7 on) tell the gate, also if a decode had none.

        Returns the certain tokens of `sampled`, up to the first that was not drafted.
        """
        raise NotImplementedError("task 3.9.6")

    def observe_step(self, plan: StepPlan, sampled: Iterable[Sequence[int]], seconds: float) -> None:
        """Tell the gate how long a step took, if it had only decodes and drafts.

        `sampled` has the sampled tokens of each of its requests.
        """
        raise NotImplementedError("task 3.9.6")

    def forget(self, request_id: str) -> None:
        """Forget a request. It may be unknown."""
        raise NotImplementedError("task 3.9.6")
