"""Speculation in the engine: which sequences get a draft, and what becomes of it."""

from collections.abc import Iterable, Sequence

from tiny_llm_lab.types import Clock, DraftGate, Proposer, StepPlan

from .request_state import RequestState


class Speculation:
    """The drafts of an engine's requests, and their counters."""

    def __init__(self, proposer: Proposer, gate: DraftGate, vocab_size: int, clock: Clock) -> None:
        """`proposer` drafts for a model of `vocab_size` tokens. Sets stats, a `SpecDecodeStats`.

        `gate` (from task 3.9.7 on) chooses the drafts that are verified; it learns how long steps take, in
        seconds on `clock`.
        """
        raise NotImplementedError("task 3.9.6")

    def draft(self, requests: Iterable[RequestState]) -> None:
        """Give those of the running `requests` that decode their spec_token_ids, before the step is planned.

        A sequence that has some keeps them. Draft tokens that cannot become part of the answer are cut, and
        those from the first outside the vocabulary on. None is made where the gate (from task 3.9.7
        on) wants neither the shortest draft, of one token, nor the longest.
        """
        raise NotImplementedError("task 3.9.6")

    def accepted(self, request: RequestState, sampled: Sequence[int]) -> list[int]:
        """Count the draft; return the tokens of `sampled` that are certain, up to the first not drafted."""
        raise NotImplementedError("task 3.9.6")

    def observe_step(self, plan: StepPlan, sampled: Iterable[Sequence[int]], end_s: float) -> None:
        """Tell the gate how long a step took since `draft`, if it held nothing but decodes and drafts.

        `sampled` are the sampled tokens of each of its requests.
        """
        raise NotImplementedError("task 3.9.6")

    def forget(self, request_id: str) -> None:
        """Drop what is remembered of a request; one that is not known is fine."""
        raise NotImplementedError("task 3.9.6")
