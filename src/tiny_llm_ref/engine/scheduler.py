"""Which tokens a step computes: one budget, sequences in order, the same code for prompts and answers."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal

from tiny_llm_lab.types import SchedulerConfig, StepPlan, UserError, require_room
from tiny_llm_lab.types.scheduling.no_states import NO_STATES, NoStates

from ..cache.block_pool import BlockPool
from ..cache.prefix_cache import PrefixCache
from .block_manager import KVCacheManager
from .request_queue import RequestQueue
from .sequence import TokenSequence
from .token_budget import TokenBudget, validate_chunk_grid

_Kind = Literal["mixed", "prefill", "decode"]


class Scheduler:
    """Running and waiting sequences, each in the order of the policy. Owns their blocks.

    A step is `schedule`, then a forward pass over what it planned, then `commit`. Between steps you may add,
    finish and abort sequences. There is no model and there are no arrays; tokens and blocks are numbers.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        pool: BlockPool,
        prefix_cache: PrefixCache | None = None,
        states: NoStates = NO_STATES,
    ) -> None:
        """No sequences yet. Sets config, pool, prefix_cache, which must belong to `pool`, and queue.
        Sets max_num_tokens, the most computed tokens a sequence may have: max_model_len, or what all blocks
        hold if that is less. The caller must finish a sequence that has reached it.
        Raises UserError like `validate_chunk_grid` (from task 3.5.2 on).
        From task 4.4.4 on: the manager of blocks has these `states`.
        """
        self.config, self.pool, self.prefix_cache = config, pool, prefix_cache
        self.max_num_tokens = min(config.max_model_len, pool.num_blocks * pool.block_size)
        if config.chunk_grid:
            validate_chunk_grid(config)
        self._sequences: dict[str, TokenSequence] = {}
        self.queue = RequestQueue(config.policy)
        self._manager = KVCacheManager(pool, prefix_cache)
        self._states = self._manager.states = states
        self._last_kind: _Kind = "decode"
        self._preempted: list[TokenSequence] = []  # in this step
        self._must_wait: set[str] = set()  # in this step, for blocks that another sequence computes

    def reconfigure(self, config: SchedulerConfig) -> None:
        """Use `config` now (from task 3.6.3 on). Raises UserError like `validate_change` and `__init__`."""
        self.config.validate_change(config)
        if config.chunk_grid:
            validate_chunk_grid(config)
        self.config = config

    @property
    def waiting(self) -> Sequence[TokenSequence]:
        """The sequences that hold no blocks, starting with the next to be admitted."""
        return tuple(self.queue.waiting)

    @property
    def running(self) -> Sequence[TokenSequence]:
        """The admitted sequences, in order. The last sequence is preempted first."""
        return tuple(self.queue.running)

    def add(self, sequence: TokenSequence) -> None:
        """Let a new sequence wait to be admitted.

        Raises UserError if it could never run: its prompt is "empty", longer than "max_model_len" or longer
        than all "blocks" of the pool hold. The message has the word in quotes; `require_room` of
        tiny_llm_lab.types words two of them. Raises UserError if its id is in use, and ValueError if the
        sequence is not new.
        """
        length, limit = len(sequence.prompt_token_ids), self.max_num_tokens
        if length == 0:
            raise UserError("the prompt is empty: give at least one token")
        is_configured = limit == self.config.max_model_len
        require_room(length, limit, "max_model_len" if is_configured else "the capacity of all KV blocks")
        if sequence.request_id in self._sequences:
            raise UserError(f"request id {sequence.request_id!r} is in use: choose another")
        if sequence.num_computed_tokens or sequence.block_ids:
            raise ValueError(f"request {sequence.request_id!r} was scheduled before")
        self._sequences[sequence.request_id] = sequence
        self.queue.add(sequence)

    def schedule(self, token_budget: int | None = None) -> StepPlan:
        """Plan one step: give tokens to running sequences in order, then admit waiting ones in order.

        A sequence gets what it has left to compute, draft included, up to max_num_tokens in total. This is
        limited by long_prefill_token_threshold unless the sequence decodes, by what is left of
        max_num_batched_tokens or of a smaller `token_budget`, and by the rules of config. If blocks run out,
        a sequence loses its draft. If that is not enough, the last sequence in order is preempted: its blocks
        are freed, its computed tokens and its draft are forgotten, and it waits again.

        A waiting sequence is admitted if there is a free place (max_num_seqs) and there are free blocks for
        all its known tokens, and if it gets a token, waits for blocks that another sequence computes, or has
        a fair share that ends before the grid (from task 3.5.2 on). A sequence that can't be admitted blocks
        all sequences after it. After a preemption a class admits only if all victims are of less urgent
        classes.

        Priority classes (from task 3.5.3 on) are served one after another. Batch sequences get tokens after
        all interactive sequences, running or newly admitted, and lose places and blocks as soon as an
        interactive sequence needs them. If steps alternate, a batch step may come between two interactive
        steps.

        Raises UserError for a token_budget below 1, and ValueError if a sequence already has max_num_tokens.
        """
        limit = self.config.max_num_batched_tokens
        budget = limit if token_budget is None else min(token_budget, limit)
        if budget < 1:
            raise UserError(f"token_budget must be 1 or more, not {budget}")
        if self.config.policy == "priority":
            self.queue.next_step()
        self._preempted = []
        self._must_wait = {s.request_id for s in self.queue.running if self._manager.attach_cached(s)}
        step = TokenBudget(self.config, budget)
        for kind in self._kinds():
            for rank in self.queue.ranks:
                self._continue_running(step, kind, rank)
                self._admit_waiting(step, kind, rank)
            if step.assigned:
                self._last_kind = kind
                break
        self._plan_states(step.assigned, {})
        return StepPlan(step.assigned, tuple(victim.request_id for victim in self._preempted))

    def reserve(self, sequence: TokenSequence, num_tokens: int) -> int:
        """Give a running sequence blocks for a draft, as `KVCacheManager.reserve` (from task 3.9.6 on)."""
        return self._manager.reserve(sequence, num_tokens)

    def schedule_next(self, plan: StepPlan) -> StepPlan | None:
        """Plan the step after `plan`, before `plan` is committed, if it is certain (from task 3.7.2 on).

        Returns the plan that `schedule` would make after `commit` if no request were added or ended, and
        allocates its blocks. Returns None and changes nothing if it exceeds the budget or the free blocks.
        """
        running = self.queue.running
        if len(running) > self.config.max_num_batched_tokens or not self._manager.extend(running):
            return None
        if self.config.policy == "priority":
            self.queue.next_step()
        self._last_kind = "decode"
        ones = dict.fromkeys(plan.num_scheduled_tokens, 1)
        self._plan_states(ones, plan.num_scheduled_tokens)
        return StepPlan(ones)

    def commit(self, plan: StepPlan, sampled: Mapping[str, Sequence[int]]) -> None:
        """Record a forward pass: the planned tokens are computed, and new tokens were sampled.

        A sequence whose known tokens are now all computed has its new tokens in `sampled`: the accepted part
        of its draft, then one more token. They join the answer; rejected draft tokens do not count as
        computed, and the draft is used up. Blocks that became full can be found in the prefix cache. Requests
        that ended since `schedule` are skipped. Raises ValueError like `TokenSequence.advance`.
        """
        for request_id, num_new in plan.num_scheduled_tokens.items():
            sequence = self._sequences.get(request_id)
            if sequence and sequence.block_ids:
                sequence.advance(num_new, sampled.get(request_id, ()))
                self._manager.register(sequence)

    def finish(self, request_id: str) -> None:
        """End a running sequence and free its blocks. Raises ValueError if it does not run."""
        if request_id not in self._sequences or self.queue.is_waiting(self._sequences[request_id]):
            raise ValueError(f"request {request_id!r} is not running")
        self.abort(request_id)

    def abort(self, request_id: str) -> bool:
        """End a running or waiting sequence and free its blocks. Returns False if there is none."""
        if request_id not in self._sequences:
            return False
        sequence = self._sequences.pop(request_id)
        self.queue.remove(sequence)
        self._manager.release(sequence)
        return True

    def check(self) -> None:
        """Raises RuntimeError unless the pool counts exactly the blocks that all sequences have."""
        self.pool.check(sequence.block_ids for sequence in self._sequences.values())

    def _plan_states(self, assigned: Mapping[str, int], launched: Mapping[str, int]) -> None:
        """Plan a step's states, where `launched` tokens are still being computed."""
        if self._states is NO_STATES:
            return  # a manager of blocks from before task 4.4.4 has no `plan`
        planned = []
        for name, num_new in assigned.items():
            sequence = self._sequences[name]
            planned.append((sequence, sequence.num_computed_tokens + launched.get(name, 0), num_new))
        self._manager.plan(planned)

    def _kinds(self) -> tuple[_Kind, ...]:
        """Returns the kinds of step to try, in order. The first kind with work is taken."""
        if self.config.step_mode == "mixed":
            return ("mixed",)
        return ("decode", "prefill") if self._last_kind == "prefill" else ("prefill", "decode")

    def _continue_running(self, step: TokenBudget, kind: _Kind, rank: int) -> None:
        """Give tokens to the running sequences of one priority class, and blocks, if need be of the last."""
        running = [
            sequence
            for sequence in self.queue.running_of(rank)
            if sequence.request_id not in self._must_wait
            and (kind == "mixed" or (kind == "decode") == sequence.is_decoding)
        ]
        if self.config.policy == "fair":
            step.set_shares(self._needs(running, rank))
        for sequence in running:
            if step.left == 0 or self.queue.is_waiting(sequence):
                break  # the preempted sequence was last, and all after it are preempted too
            num_new = step.num_new_tokens(sequence, sequence.num_computed_tokens, self._num_missing(sequence))
            if num_new > 0 and (num_new := self._make_room(sequence, num_new)) > 0:
                step.assign(sequence, num_new)

    def _num_missing(self, sequence: TokenSequence) -> int:
        num_missing = min(sequence.num_tokens_with_spec, self.max_num_tokens) - sequence.num_computed_tokens
        if num_missing == 0:
            raise ValueError(f"request {sequence.request_id!r} has {self.max_num_tokens} tokens: finish it")
        return num_missing

    def _make_room(self, sequence: TokenSequence, num_new: int) -> int:
        """Allocate blocks for up to `num_new` more tokens, preempt if needed, and return how many tokens."""
        num_known = sequence.num_tokens - sequence.num_computed_tokens
        has_state = num_new <= num_known or self._states.may_draft(sequence)
        num_new = num_new if has_state else num_known
        while (needed := self._manager.num_blocks_needed(sequence, num_new)) > self.pool.num_free:
            if num_new > num_known:
                num_new = num_known  # no sequence is preempted for a draft
            elif self._preempt() is sequence:
                return 0
        sequence.block_ids += self.pool.allocate(needed)
        return num_new

    def _preempt(self) -> TokenSequence:
        victim = self.queue.preempt()
        self._manager.release(victim)
        victim.num_computed_tokens, victim.num_read_tokens, victim.spec_token_ids = 0, 0, []
        victim.num_preemptions += 1
        self._preempted.append(victim)
        return victim

    def _admit_waiting(self, step: TokenBudget, kind: _Kind, rank: int) -> None:
        """Admit waiting sequences of one priority class while tokens, places and blocks are left."""
        if kind == "decode" or any(victim.rank <= rank for victim in self._preempted):
            return
        for sequence, num_cached, must_wait in self._admissible(rank):
            num_missing = sequence.num_tokens - num_cached
            num_new = 0 if must_wait else step.num_new_tokens(sequence, num_cached, num_missing)
            # A fair share may not reach the grid. That must not block the sequences after it.
            may_wait = must_wait or (self.config.policy == "fair" and self.config.chunk_grid > 0)
            if step.left == 0 or (num_new == 0 and not may_wait) or not self._num_prefill_slots():
                break
            while not self._has_place(sequence, num_cached):
                self._preempt()  # of a less urgent class, because of how candidates are counted
            self.queue.admit()
            self._manager.attach_cached(sequence)
            if num_new > 0:
                step.assign(sequence, self._make_room(sequence, num_new))

    def _has_place(self, sequence: TokenSequence, num_cached: int) -> bool:
        has_states = self._states is NO_STATES or self._manager.has_states(sequence, num_cached)
        return has_states and len(self.queue.running) < self.config.max_num_seqs

    def _num_prefill_slots(self) -> int:
        limit = self.config.max_num_partial_prefills or sys.maxsize
        return max(0, limit - sum(not each.is_decoding for each in self.queue.running))

    def _admissible(self, rank: int) -> Iterator[tuple[TokenSequence, int, bool]]:
        """Returns the sequences that may be admitted, their cached tokens, and whether each would wait."""
        # While a more urgent sequence waits, it gets blocks first.
        is_first = bool(self.queue.waiting) and self.queue.waiting[0].rank == rank
        candidates = self.queue.candidates(rank, self.config.max_num_seqs) if is_first else ()
        return self._manager.admissible(candidates, self.queue.running)

    def _needs(self, running: Sequence[TokenSequence], rank: int) -> list[tuple[TokenSequence, int, int]]:
        """Returns the sequences that can use tokens, admissible ones included: computed, missing tokens."""
        needs = [(each, each.num_computed_tokens, self._num_missing(each)) for each in running]
        return needs + [
            (each, num_cached, each.num_tokens - num_cached)
            for each, num_cached, must_wait in islice(self._admissible(rank), self._num_prefill_slots())
            if not must_wait
        ]
