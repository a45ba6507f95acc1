"""Speculation in the engine: which sequences get a draft, and what becomes of it."""

from collections.abc import Iterable, Sequence

from tiny_llm_lab.types import Clock, DraftGate, Proposer, StepPlan

from ..speculative.stats import SpecDecodeStats
from ..speculative.verify import Drafter, accepted_tokens
from .request_state import RequestState


class Speculation:
    """The drafts of an engine's requests, and their counters."""

    def __init__(self, proposer: Proposer, gate: DraftGate, vocab_size: int, clock: Clock) -> None:
        """`proposer` drafts for a model of `vocab_size` tokens. Sets stats, a `SpecDecodeStats`.

        `gate` (from task 3.9.7 on) chooses the drafts that are verified; it learns how long steps take, in
        seconds on `clock`.
        """
        self.stats = SpecDecodeStats()
        self._proposer, self._gate, self._vocab_size, self._clock = proposer, gate, vocab_size, clock
        self._start_s = 0.0

    def draft(self, requests: Iterable[RequestState]) -> None:
        """Give those of the running `requests` that decode their spec_token_ids, before the step is planned.

        A sequence that has some keeps them. Draft tokens that cannot become part of the answer are cut, and
        those from the first outside the vocabulary on. None is made where the gate (from task 3.9.7
        on) wants neither the shortest draft, of one token, nor the longest.
        """
        decoding = [each for each in requests if each.sequence.is_decoding]
        self._start_s = self._clock()
        self._gate.begin_step(len(decoding))
        for request in decoding:
            sequence, most = request.sequence, request.answer.max_draft_tokens
            if sequence.spec_token_ids or most <= 0:
                continue
            # The verdict changes once at most as drafts grow, and making one takes time.
            if not any(self._gate.wants(sequence.request_id, length) for length in (1, most)):
                continue
            drafter = Drafter(request.sampler)
            draft = self._proposer.propose(sequence.token_ids, sequence.request_id, drafter)
            tokens = list(draft.cut(most).within(self._vocab_size).token_ids)
            if tokens and self._gate.wants(sequence.request_id, len(tokens)):
                sequence.spec_token_ids = tokens

    def accepted(self, request: RequestState, sampled: Sequence[int]) -> list[int]:
        """Count the draft; return the tokens of `sampled` that are certain, up to the first not drafted."""
        draft = request.sequence.spec_token_ids[: len(sampled) - 1]
        if not draft:
            return list(sampled)
        accepted = accepted_tokens(sampled, draft)
        self.stats.observe(len(draft), len(accepted) - 1)
        self._gate.observe_draft(request.sequence.request_id, len(draft), len(accepted) - 1)
        return accepted

    def observe_step(self, plan: StepPlan, sampled: Iterable[Sequence[int]], end_s: float) -> None:
        """Tell the gate how long a step took since `draft`, if it held nothing but decodes and drafts.

        `sampled` are the sampled tokens of each of its requests.
        """
        num_rows = sum(map(len, sampled))
        if num_rows == plan.total_num_scheduled_tokens:
            self._gate.observe_step(num_rows, end_s - self._start_s)

    def forget(self, request_id: str) -> None:
        """Drop what is remembered of a request; one that is not known is fine."""
        self._gate.forget(request_id)
        self._proposer.forget(request_id)
