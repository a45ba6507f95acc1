"""Speculation in the engine: which sequences get a draft, and how much of it is accepted."""

from collections.abc import Iterable, Sequence

from tiny_llm_lab.types import Clock, DraftGate, Proposer, StepPlan

from ..speculative.stats import SpecDecodeStats
from ..speculative.verify import Drafter, accepted_tokens
from .request_state import RequestState


class Speculation:
    """The drafts of an engine's requests, and their counters."""

    def __init__(self, proposer: Proposer, gate: DraftGate, vocab_size: int, clock: Clock) -> None:
        """`proposer` drafts for a model of `vocab_size` tokens. Sets stats, a `SpecDecodeStats`.

        `gate` (from task 3.9.7 on) chooses how long drafts are. It learns how long steps take, in seconds on
        `clock`.
        """
        self.stats = SpecDecodeStats()
        self._proposer, self._gate, self._vocab_size, self._clock = proposer, gate, vocab_size, clock
        self._start_s = 0.0

    def draft(self, requests: Iterable[RequestState]) -> None:
        """Set spec_token_ids of the running `requests` that decode, before the step is planned.

        A sequence that already has some keeps them. A draft is cut at the first token outside the vocabulary,
        and where its tokens can't become part of the answer. The gate (from task 3.9.7 on) is asked for the
        length of each before it is made, with the most that may become part of the answer, and is told the
        seconds in which all were made. Each is made alone: a draft of k tokens is k passes of one row.
        """
        decoding = [each for each in requests if each.sequence.is_decoding]
        begin_s, num_rows = self._clock(), 0
        self._gate.begin_step(len(decoding))
        for request in decoding:
            sequence, most = request.sequence, request.answer.max_draft_tokens
            if sequence.spec_token_ids or most <= 0:
                continue
            if length := self._gate.length(sequence.request_id, most):
                drafter = Drafter(request.sampler)
                draft = self._proposer.propose(sequence.token_ids, sequence.request_id, drafter)
                num_rows += len(draft.token_ids)
                sequence.spec_token_ids = list(draft.cut(length).within(self._vocab_size).token_ids)
        self._start_s = self._clock()
        if num_rows:
            self._gate.observe_drafting(num_rows, num_rows, self._start_s - begin_s)

    def accepted(self, request: RequestState, sampled: Sequence[int]) -> list[int]:
        """Count the draft, and (from task 3.9.7 on) tell the gate, also if a decode had none.

        Returns the certain tokens of `sampled`, up to the first that was not drafted.
        """
        draft = request.sequence.spec_token_ids[: len(sampled) - 1]
        accepted = accepted_tokens(sampled, draft)
        self.stats.observe(len(draft), len(accepted) - 1)
        if request.sequence.is_decoding:
            self._gate.observe_draft(request.sequence.request_id, len(draft), len(accepted) - 1)
        return accepted

    def observe_step(self, plan: StepPlan, sampled: Iterable[Sequence[int]], end_s: float) -> None:
        """Tell the gate how long a step took after `draft`, if the step had only decodes and drafts.

        `sampled` has the sampled tokens of each of its requests.
        """
        num_rows = sum(map(len, sampled))
        if num_rows == plan.total_num_scheduled_tokens:
            self._gate.observe_step(num_rows, end_s - self._start_s)

    def forget(self, request_id: str) -> None:
        """Forget a request. It may be unknown."""
        self._gate.forget(request_id)
        self._proposer.forget(request_id)
