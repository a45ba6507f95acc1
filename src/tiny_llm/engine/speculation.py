"""Speculation in the engine: which sequences get a draft, and how much of it is accepted."""

from collections.abc import Iterable, Sequence

from tiny_llm_lab.types import Clock, DraftGate, Proposer, StepPlan

from .request_state import RequestState


class Speculation:
    """The drafts of an engine's requests, and their counters."""

    def __init__(self, proposer: Proposer, gate: DraftGate, vocab_size: int, clock: Clock) -> None:
        """`proposer` drafts for a model of `vocab_size` tokens. Sets stats, a `SpecDecodeStats`.

        `gate` (from task 3.9.7 on) chooses how long drafts are. It learns how long steps take, in seconds on
        `clock`.
        """
        raise NotImplementedError("task 3.9.6")

    def draft(self, requests: Iterable[RequestState]) -> None:
        """Set spec_token_ids of the running `requests` that decode, before the step is planned.

        A sequence that already has some keeps them. A draft is cut at the first token outside the vocabulary,
        and where its tokens can't become part of the answer. The gate (from task 3.9.7 on) is asked for the
        length of each before it is made, with the most that may become part of the answer, and is told the
        seconds in which all were made. Each is made alone: a draft of k tokens is k passes of one row.
        """
        raise NotImplementedError("task 3.9.6")

    def accepted(self, request: RequestState, sampled: Sequence[int]) -> list[int]:
        """Count the draft, and (from task 3.9.7 on) tell the gate, also if a decode had none.

        Returns the certain tokens of `sampled`, up to the first that was not drafted.
        """
        raise NotImplementedError("task 3.9.6")

    def observe_step(self, plan: StepPlan, sampled: Iterable[Sequence[int]], end_s: float) -> None:
        """Tell the gate how long a step took after `draft`, if the step had only decodes and drafts.

        `sampled` has the sampled tokens of each of its requests.
        """
        raise NotImplementedError("task 3.9.6")

    def forget(self, request_id: str) -> None:
        """Forget a request. It may be unknown."""
        raise NotImplementedError("task 3.9.6")
