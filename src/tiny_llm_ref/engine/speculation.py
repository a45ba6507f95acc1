"""Speculation in the engine: which sequences get a draft, and how much of it is accepted."""

from collections.abc import Iterable, Sequence

from tiny_llm_lab.types import AllDrafts, Clock, DraftRequest, Proposer, StepPlan

from ..speculative.stats import SpecDecodeStats
from ..speculative.verify import Drafter, accepted_tokens
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
        self.stats = SpecDecodeStats()
        super().__init__(proposer, clock, is_timed)
        self._gate, self._vocab_size = gate, vocab_size

    def draft(self, requests: Iterable[RequestState], scheduler: Scheduler) -> None:
        """Set spec_token_ids of the running `requests` that decode, before the step is planned.

        A sequence that already has some keeps them. The gate (from task 3.9.7 on) says how long a draft may
        be; nothing longer is drafted. A draft that is stored needs blocks first. It is cut at the first token
        outside the vocabulary, and where its tokens can't become part of the answer. A sequence that is
        behind with its reading (from task 3.9.7 on) has no draft yet.
        """
        decoding = [each for each in requests if each.sequence.is_decoding]
        if self.skips(decoding):
            return
        asked = []
        for request in decoding:
            sequence, most = request.sequence, self.lengths[request.sequence.request_id]
            if sequence.spec_token_ids or most == 0 or self.is_behind(sequence):
                continue
            if self.proposer.keeps_blocks:
                most = scheduler.reserve(sequence, most)
            if most > 0:
                asked.append(DraftRequest(sequence, most, Drafter(request.sampler)))
        start_s = self.clock()
        drafts = self.proposer.propose(asked)
        lengths = [len(draft.token_ids) for draft in drafts]
        if any(lengths):
            self._gate.observe_drafting(max(lengths), sum(lengths), self.clock() - start_s)
        for each, draft in zip(asked, drafts, strict=True):
            each.sequence.spec_token_ids = list(draft.within(self._vocab_size).token_ids)

    def skips(self, requests: Sequence[RequestState]) -> bool:
        """Whether none of these requests would get a draft in the next step, if all of them decode then."""
        self._gate.begin_step(len(requests))
        self.lengths = {each.sequence.request_id: self._most(each) for each in requests}
        return not any(self.lengths.values())

    def accepted(self, request: RequestState, sampled: Sequence[int]) -> list[int]:
        """Count the draft, and (from task 3.9.7 on) tell the gate, also if a decode had none.

        Returns the certain tokens of `sampled`, up to the first that was not drafted.
        """
        draft = request.sequence.spec_token_ids[: len(sampled) - 1]
        accepted = accepted_tokens(sampled, draft)
        self.stats.observe(len(draft), len(accepted) - 1)
        if request.sequence.is_decoding:
            self.earn(self._gate.observe_draft(request.sequence.request_id, len(draft), len(accepted) - 1))
        return accepted

    def observe_step(self, plan: StepPlan, sampled: Iterable[Sequence[int]], seconds: float) -> None:
        """Tell the gate how long a step took, if it had only decodes and drafts.

        `sampled` has the sampled tokens of each of its requests.
        """
        num_rows = sum(map(len, sampled))
        if num_rows == plan.total_num_scheduled_tokens:
            self._gate.observe_step(num_rows, seconds)

    def forget(self, request_id: str) -> None:
        """Forget a request. It may be unknown."""
        self._gate.forget(request_id)
        self.proposer.forget(request_id)

    def _most(self, request: RequestState) -> int:
        """The most tokens that a draft of this request may have in the step that begins."""
        sequence, most = request.sequence, min(request.answer.max_draft_tokens, self.proposer.num_tokens)
        length = self._gate.length(sequence.request_id, most) if most > 0 else 0
        return length if not self.is_behind(sequence) or self.can_pay(sequence) else 0
