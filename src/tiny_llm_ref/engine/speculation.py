"""Speculation in the engine: which sequences get a draft, and how much of it is accepted."""

from collections.abc import Iterable, Sequence

import mlx.core as mx

from tiny_llm_lab.types import Clock, DraftGate, DraftRequest, Proposer, StepPlan
from tiny_llm_lab.types.computing.paged import PagedCache, Slice

from ..speculative.stats import SpecDecodeStats
from ..speculative.verify import Drafter, accepted_tokens
from .request_state import RequestState
from .scheduler import Scheduler

# Rows of a step from which on its time tells what a row takes, and how far one step moves that.
_MANY_ROWS, _OF_ROW = 32, 1 / 4


class Speculation:
    """The drafts of an engine's requests, and their counters."""

    def __init__(
        self, proposer: Proposer, gate: DraftGate, vocab_size: int, clock: Clock, is_timed: bool = False
    ) -> None:
        """`proposer` drafts for a model of `vocab_size` tokens. Sets stats, a `SpecDecodeStats`.

        `gate` (from task 3.9.7 on) chooses the lengths of drafts. It learns how long steps and drafts take,
        in seconds on `clock`. `is_timed`: budgets too follow what is measured.
        """
        self.stats = SpecDecodeStats()
        self._proposer, self._gate, self._vocab_size, self._clock = proposer, gate, vocab_size, clock
        self._is_timed = is_timed
        self._row_s, self._read_row_s = 0.0, 0.0  # of a row of a long step; of a row that is also read

    @property
    def caches(self) -> Sequence[PagedCache]:
        """The blocks of the proposer's own model, if it has one."""
        return self._proposer.caches

    def create_cache(self, num_blocks: int, block_size: int, kv_bits: int | None) -> None:
        """As the proposer's."""
        self._proposer.create_cache(num_blocks, block_size, kv_bits)

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
        self._gate.observe_drafting(max(1, *lengths), sum(lengths), self._clock() - start_s)
        for each, draft in zip(asked, drafts, strict=True):
            each.sequence.spec_token_ids = list(draft.within(self._vocab_size).token_ids)

    def skips(self, requests: Sequence[RequestState]) -> bool:
        """Whether none of these requests would get a draft in the next step, if all of them decode then."""
        self._gate.begin_step(len(requests))
        return all(self._most(each) == 0 for each in requests)

    def accepted(self, request: RequestState, sampled: Sequence[int]) -> list[int]:
        """Count the draft. Returns the certain tokens of `sampled`, up to the first that was not drafted."""
        draft = request.sequence.spec_token_ids[: len(sampled) - 1]
        accepted = accepted_tokens(sampled, draft)
        self.stats.observe(len(draft), len(accepted) - 1)
        self._gate.observe_draft(request.sequence.request_id, len(draft), len(accepted) - 1)
        return accepted

    def observe_step(self, plan: StepPlan, sampled: Iterable[Sequence[int]], seconds: float) -> None:
        """Tell the gate how long a step took, if it had only decodes and drafts.

        `sampled` has the sampled tokens of each of its requests.
        """
        num_sampled, num_rows = sum(map(len, sampled)), plan.total_num_scheduled_tokens
        if num_sampled == num_rows:
            self._gate.observe_step(num_rows, seconds)
        elif num_rows >= _MANY_ROWS:
            self._row_s = _moved(self._row_s, seconds / num_rows)

    def follow(self, computed: Sequence[tuple[RequestState, Slice]], is_ahead: bool) -> float:
        """After a step is committed: let the proposer read what it computed; returns the seconds it took.

        If the next step already runs (`is_ahead`), or for few tokens, it does not wait, and returns 0.
        """
        start_s = self._clock()
        num_rows = self._proposer.follow([(request.sequence, at) for request, at in computed])
        if num_rows < _MANY_ROWS or is_ahead or not self._is_timed:
            return 0.0
        mx.eval([cache.pools for cache in self.caches])
        seconds = self._clock() - start_s
        self._read_row_s = _moved(self._read_row_s, seconds / num_rows)
        return seconds

    def token_budget(self, budget: int | None, scheduler: Scheduler) -> int | None:
        """Returns the budget of a step, so that it and the reading of its tokens take as long as without.

        `budget` is that of others, None: max_num_batched_tokens. Every decode, and one token of a chunk or
        what the grid needs, has its place.
        """
        config = scheduler.config
        if not (self._row_s and self._read_row_s and config.enable_chunked_prefill):
            return budget
        most = int(config.max_num_batched_tokens / (1 + self._read_row_s / self._row_s))
        most = max(most, len(scheduler.running) + max(1, config.chunk_grid))
        return min(most, budget or most)

    def forget(self, request_id: str) -> None:
        """Forget a request. It may be unknown."""
        self._gate.forget(request_id)
        self._proposer.forget(request_id)

    def release(self) -> None:
        """Free the blocks of the proposer's model."""
        self._proposer.release()

    def _most(self, request: RequestState) -> int:
        """The most tokens that a draft of this request may have in the step that begins."""
        most = min(request.answer.max_draft_tokens, self._proposer.num_tokens)
        return self._gate.length(request.sequence.request_id, most) if most > 0 else 0


def _moved(old: float, new: float) -> float:
    return new if old == 0 else old + _OF_ROW * (new - old)
