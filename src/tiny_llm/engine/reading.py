"""What a draft model reads of the requests, and when: reading costs time, and drafts must earn it."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import Clock, Proposer
from tiny_llm_lab.types.computing.paged import Slice

from .request_state import RequestState
from .scheduler import Scheduler
from .sequence import TokenSequence

# What is read before drafts have saved anything, in tokens of the model's own time; the most tokens that are
# saved; and what a draft model reads on trust that takes half of the model's time, or more.
_TRUST, _MOST, _LEAST = 1 << 11, 1 << 17, 1 << 9


class Reading:
    """The part of `Speculation` that lets the proposer read what the model has computed.

    One that may lag has an account, in tokens to read. The accounts of the requests earn for it, and reading
    takes from it. It reads no sequence that the account couldn't pay to the end. What it leaves out it reads
    later, as fast as a step's budget allows. Any other proposer reads everything.
    """

    def __init__(self, proposer: Proposer, clock: Clock, is_timed: bool) -> None:
        """`is_timed`: times are measured, in seconds on `clock`; otherwise reading costs nothing.

        Sets proposer, clock, and lengths = {}: by request id, how long the drafts of requests that decode may
        be in the next step.
        """
        self.proposer, self.clock, self._is_timed = proposer, clock, is_timed
        self._has_account, self._budget = is_timed and proposer.may_lag, 0
        self._left = 0.0 if self._has_account else float("inf")  # below 0 on trust
        self.lengths: dict[str, int] = {}
        # The time of reading a token, and that by the time of a step's token; 0 and 1 until measured.
        self._token_s, self._share = 0.0, float(is_timed and proposer.keeps_blocks)

    def earn(self, seconds: float) -> None:
        """Add seconds to the account; below 0 if drafts cost more than they saved."""
        # If reading is dear, drafts can hardly pay, whatever the text is.
        most = max(0, _MOST * (1 - 2 * self._share)) if self._has_account else float("inf")
        self._left = min(self._left + seconds / (self._token_s or float("inf")), most)

    def is_behind(self, sequence: TokenSequence) -> bool:
        """Whether a sequence has a block or more to read before it should have a draft."""
        size = self.proposer.caches[0].block_size if self._has_account else float("inf")
        return sequence.num_computed_tokens - sequence.num_read_tokens >= size

    def can_pay(self, sequence: TokenSequence) -> bool:
        """Whether all of a sequence may be read: as long as it isn't known how long that takes, it may."""
        # A cheap draft model may read a long prompt: whatever it is, trust costs as much time at most.
        trusted = max(_LEAST, _TRUST / max(self._share, _TRUST / _MOST) - 2 * _TRUST)
        return not self._token_s or sequence.num_tokens - sequence.num_read_tokens - trusted <= self._left

    def token_budget(self, budget: int | None, scheduler: Scheduler) -> int | None:
        """Returns the budget of a step, so that it and the reading of its tokens take as long as without.

        `budget` is that of others, None: max_num_batched_tokens. Every decode, and one token of a chunk or
        what the grid needs, has its place. Nothing changes if no prompt of the step may be read.
        """
        config, prompts = scheduler.config, [each for each in scheduler.running if not each.is_decoding]
        self._budget = budget or config.max_num_batched_tokens
        is_read = any(map(self.can_pay, (*prompts, *scheduler.waiting[:1])))
        if self._share == 0 or not config.enable_chunked_prefill or not is_read:
            return budget
        most = int(config.max_num_batched_tokens / (1 + self._share))
        most = max(most, len(scheduler.running) + max(1, config.chunk_grid))
        return min(most, budget or most)

    def follow(self, computed: Sequence[tuple[RequestState, Slice]], step_s: float) -> float:
        """After a step of `step_s` seconds is committed: let the proposer read what it computed.

        With an account, requests whose drafts have a length of 0 are not read. Returns the seconds of that;
        if `step_s` is 0, it does not wait and returns 0.
        """
        start_s, num_new = self.clock(), sum(at.num_new for _, at in computed)
        if self._has_account:
            # At least a block, so that reading comes to an end beside full steps.
            room = max(self.proposer.caches[0].block_size, int((self._budget - num_new) / self._share))
            for each in (request.sequence for request, _ in computed):
                is_read = self.lengths.get(each.request_id, 1) and self.can_pay(each)
                num = min(room, each.num_computed_tokens - each.num_read_tokens) if is_read else 0
                each.num_readable_tokens, room = each.num_read_tokens + num, room - max(0, num)
        num_rows = self.proposer.follow([(request.sequence, at) for request, at in computed])
        self._left -= num_rows
        if num_rows == 0 or not self._is_timed or step_s <= 0:
            return 0.0
        mx.eval([cache.pools for cache in self.proposer.caches])
        read_s = self.clock() - start_s
        self._token_s += (0.25 if self._token_s else 1.0) * (read_s / num_rows - self._token_s)
        if num_rows <= num_new:  # neither is a pass over a few rows
            # If it takes half the time, what was measured before had another cause, as in `Line`.
            share = read_s / num_rows / (step_s / num_new)
            self._share += (share - self._share) * (1 if share <= self._share / 2 else 1 / 4)
        return read_s
