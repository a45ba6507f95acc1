"""Speculation in the engine: which sequences get a draft, and how much of it is accepted."""

from collections.abc import Iterable, Sequence

import mlx.core as mx

from tiny_llm_lab.types import AllDrafts, Clock, DraftRequest, Proposer, StepPlan
from tiny_llm_lab.types.computing.paged import Slice

from ..speculative.stats import SpecDecodeStats
from ..speculative.verify import Drafter, accepted_tokens
from .request_state import RequestState
from .scheduler import Scheduler

# Read rows from which on their time tells what a row takes; so many of such times are averaged.
_MANY_ROWS, _MOST_MEASURED = 32, 4


class Speculation:
    """The drafts of an engine's requests, and their counters."""

    def __init__(
        self, proposer: Proposer, gate: AllDrafts, vocab_size: int, clock: Clock, is_timed: bool = False
    ) -> None:
        """`proposer` drafts for a model of `vocab_size` tokens. Sets stats, a `SpecDecodeStats`.

        `gate` (from task 3.9.7 on) chooses the lengths of drafts. It learns how long steps and drafts take,
        in seconds on `clock`. `is_timed`: whether `token_budget` follows measured times too.
        """
        self.stats = SpecDecodeStats()
        self._proposer, self._gate, self._vocab_size, self._clock = proposer, gate, vocab_size, clock
        self._is_timed = is_timed
        # The time of reading a chunk by that of the step which computed it; 1 until it was measured.
        self._share, self._num_measured = float(is_timed and proposer.keeps_blocks), 0

    def draft(self, requests: Iterable[RequestState], scheduler: Scheduler) -> None:
        """Set spec_token_ids of the running `requests` that decode, before the step is planned.

        A sequence that already has some keeps them. The gate (from task 3.9.7 on) says how long a draft may
        be; nothing longer is drafted. A draft that is stored needs blocks first. It is cut at the first token
        outside the vocabulary, and where its tokens can't become part of the answer.
        """
        decoding = [each for each in requests if each.sequence.is_decoding]
        self._gate.begin_step(len(decoding))
        asked = []
        for request in decoding:
            sequence, most = request.sequence, self._most(request)
            if sequence.spec_token_ids or most == 0:
                continue
            if self._proposer.keeps_blocks:
                most = scheduler.reserve(sequence, most)
            if most > 0:
                asked.append(DraftRequest(sequence, most, Drafter(request.sampler)))
        if not asked:
            return
        start_s = self._clock()
        drafts = self._proposer.propose(asked)
        lengths = [len(draft.token_ids) for draft in drafts]
        if any(lengths):
            self._gate.observe_drafting(max(lengths), sum(lengths), self._clock() - start_s)
        for each, draft in zip(asked, drafts, strict=True):
            each.sequence.spec_token_ids = list(draft.within(self._vocab_size).token_ids)

    def skips(self, requests: Sequence[RequestState]) -> bool:
        """Whether none of these requests would get a draft in the next step, if all of them decode then."""
        self._gate.begin_step(len(requests))
        return all(self._most(each) == 0 for each in requests)

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

    def observe_step(self, plan: StepPlan, sampled: Iterable[Sequence[int]], seconds: float) -> None:
        """Tell the gate how long a step took, if it had only decodes and drafts.

        `sampled` has the sampled tokens of each of its requests.
        """
        num_rows = sum(map(len, sampled))
        if num_rows == plan.total_num_scheduled_tokens:
            self._gate.observe_step(num_rows, seconds)

    def follow(self, computed: Sequence[tuple[RequestState, Slice]], step_s: float) -> float:
        """After a step of `step_s` seconds is committed: let the proposer read what it computed.

        Returns the seconds of that; for few tokens, or if `step_s` is 0, it does not wait and returns 0.
        """
        start_s = self._clock()
        num_rows = self._proposer.follow([(request.sequence, at) for request, at in computed])
        if num_rows < _MANY_ROWS or not self._is_timed or step_s <= 0:
            return 0.0
        mx.eval([cache.pools for cache in self._proposer.caches])
        read_s = self._clock() - start_s
        self._num_measured += 1
        self._share += (read_s / step_s - self._share) / min(self._num_measured, _MOST_MEASURED)
        return read_s

    def token_budget(self, budget: int | None, scheduler: Scheduler) -> int | None:
        """Returns the budget of a step, so that it and the reading of its tokens take as long as without.

        `budget` is that of others, None: max_num_batched_tokens. Every decode, and one token of a chunk or
        what the grid needs, has its place.
        """
        config = scheduler.config
        if self._share == 0 or not config.enable_chunked_prefill:
            return budget
        most = int(config.max_num_batched_tokens / (1 + self._share))
        most = max(most, len(scheduler.running) + max(1, config.chunk_grid))
        return min(most, budget or most)

    def forget(self, request_id: str) -> None:
        """Forget a request. It may be unknown."""
        self._gate.forget(request_id)
        self._proposer.forget(request_id)

    def _most(self, request: RequestState) -> int:
        """The most tokens that a draft of this request may have in the step that begins."""
        most = min(request.answer.max_draft_tokens, self._proposer.num_tokens)
        return self._gate.length(request.sequence.request_id, most) if most > 0 else 0
