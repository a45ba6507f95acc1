"""Which tokens a step computes: one budget, requests in order, one code path for prompts and answers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from tiny_llm_lab.types import SchedulerConfig, StepPlan, UserError

from ..cache.block_pool import BlockPool
from ..cache.prefix_cache import PrefixCache
from .block_manager import BlockTables
from .next_step import step_behind
from .policies import Lineup, StepBudget, reject_narrow_grid, turns
from .sequence import ScheduledRequest

_Kind = Literal["mixed", "prefill", "decode"]


class Scheduler:
    """Requests that run and requests that wait, both in the order of the policy; it owns their blocks.

    A step is `schedule`, then a forward pass over what it planned, then `commit`. Between steps requests
    may be added, finished and aborted. No model and no arrays: tokens and blocks are numbers.
    """

    def __init__(
        self, config: SchedulerConfig, pool: BlockPool, prefix_cache: PrefixCache | None = None
    ) -> None:
        """No requests yet. Sets config, pool and prefix_cache, which must belong to `pool`.

        Sets max_num_tokens, the most tokens one request may have computed: max_model_len, or what all
        blocks hold if that is less. The caller finishes a request that has reached it.
        Raises UserError when config.chunk_grid is larger than a threshold that is on, or than what a full
        house of decodes leaves of the budget: a prompt could wait forever for room up to the next multiple.
        """
        self.config = config
        self.pool = pool
        self.prefix_cache = prefix_cache
        self.max_num_tokens = min(config.max_model_len, pool.num_blocks * pool.block_size)
        reject_narrow_grid(config)
        self._requests: dict[str, ScheduledRequest] = {}
        self._line = Lineup(config.policy)
        self._tables = BlockTables(pool, prefix_cache)
        self._last_kind: _Kind = "decode"

    @property
    def waiting(self) -> Sequence[ScheduledRequest]:
        """Requests that hold no blocks, the next to be admitted first."""
        return tuple(self._line.waiting)

    @property
    def running(self) -> Sequence[ScheduledRequest]:
        """Admitted requests in order: the last one is preempted first."""
        return tuple(self._line.running)

    def add(self, request: ScheduledRequest) -> None:
        """Let a new request wait for its turn.

        Raises UserError when it could never run: its prompt is empty, longer than max_model_len or than
        all blocks of the pool, or its id is in use. Raises ValueError for one that is not new.
        """
        length, limit = len(request.prompt_token_ids), self.max_num_tokens
        if length == 0:
            raise UserError("the prompt is empty: give at least one token")
        if length > limit:
            reason = (
                f"max_model_len is {limit}: shorten it or raise the limit"
                if limit == self.config.max_model_len
                else f"the KV cache holds {limit}: shorten it or give the cache more blocks"
            )
            raise UserError(f"the prompt has {length} tokens but {reason}")
        if request.request_id in self._requests:
            raise UserError(f"there is a request {request.request_id!r} already: choose another id")
        if request.num_computed_tokens or request.block_ids:
            raise ValueError(f"request {request.request_id!r} was scheduled before")
        self._requests[request.request_id] = request
        self._line.add(request)

    def schedule(self, token_budget: int | None = None) -> StepPlan:
        """Plan one step: give tokens to running requests in order, then admit waiting ones in order.

        A request gets what it has left to compute, cut by long_prefill_token_threshold while its known
        tokens are not all computed, by what is left of max_num_batched_tokens (or of `token_budget`, if
        that is less), and by the rules of config. Blocks for these tokens are allocated. When they
        run out the last request in order is preempted: it gives its blocks back, forgets what was computed
        and waits again. A step that preempts admits nobody. A waiting request is admitted when a place
        and blocks for all its known tokens are free and it gets a token, or waits for blocks that another
        one computes; if the first one cannot, the others wait behind it.

        Batch-class requests take what the others leave, whatever the policy: tokens, those of their decodes
        too, when all others have theirs, the admitted ones included; places and blocks until another
        needs them. Then the last batch-class one is preempted, and the other is admitted in that same
        step. So the others get on as if no batch-class request were there; only where steps alternate,
        every second one may be of these. They are promised nothing, and go on when something is left.

        Raises UserError for a token_budget below 1, ValueError when a request already has max_num_tokens.
        """
        limit = self.config.max_num_batched_tokens
        budget = limit if token_budget is None else min(token_budget, limit)
        if budget < 1:
            raise UserError(
                f"token_budget must be 1 or more, not {budget}: a step of no tokens changes nothing"
            )
        self._line.next_step()
        followers = {request.request_id for request in self._line.running if self._tables.follow(request)}
        step = StepBudget(self.config, budget)
        for kind in self._kinds():
            for is_batch_class in (False, True):
                running, _ = self._turn(is_batch_class)
                able = [r for r in running if r.request_id not in followers and _is_of(kind, r)]
                if self.config.policy == "fair":
                    step.divide(self._needs(able, is_batch_class))
                self._schedule_running(step, able)
                if kind != "decode" and all(r.is_batch_class > is_batch_class for r in step.preempted):
                    self._admit(step, is_batch_class)
            if step.granted:
                self._last_kind = kind
                break
        return StepPlan(step.granted, tuple(r.request_id for r in step.preempted))

    def schedule_behind(self, plan: StepPlan) -> StepPlan | None:
        """Plan the step behind `plan`, which is not committed yet (from task 3.4.10 on).

        The plan that `schedule` would make after `commit`, as long as nobody comes or goes; None when
        `step_behind` is not certain of it, or when blocks would have to be taken from somebody. Its
        blocks are allocated. It is committed after `plan`.
        """
        running = self._line.running
        granted = step_behind(plan, running, len(self._line.waiting))
        if not granted or not self._tables.extend(running):
            return None
        self._line.next_step()
        self._last_kind = "decode"
        return StepPlan(granted)

    def commit(self, plan: StepPlan, sampled: Mapping[str, Sequence[int]]) -> None:
        """Take note of a forward pass: the planned tokens are computed, and new ones were sampled.

        A request whose known tokens are all computed now has its new tokens in `sampled`: the accepted
        part of its guess, then one more. They join the answer; the rejected rest of the guess does not
        count as computed, and the guess is used up. Blocks that became full can be found in the prefix
        cache. Requests that ended since `schedule` are passed over. Raises ValueError when a request has
        to have new tokens and has not, or has them and must not, or they are not its guess plus one.
        """
        for request_id, num_new in plan.num_scheduled_tokens.items():
            request = self._requests.get(request_id)
            if request is not None and request.block_ids:
                request.advance(num_new, sampled.get(request_id, ()))
                self._tables.register(request)

    def finish(self, request_id: str) -> None:
        """End a running request and give its blocks back. Raises ValueError when it does not run."""
        request = self._requests.get(request_id)
        if request is None or self._line.is_waiting(request):
            raise ValueError(f"request {request_id!r} does not run")
        self.abort(request_id)

    def abort(self, request_id: str) -> bool:
        """End a request, running or waiting, and give its blocks back; False when there is none."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._line.remove(request)
        self._tables.release(request)
        del self._requests[request_id]
        return True

    def check(self) -> None:
        """Raise RuntimeError unless the blocks of all requests are exactly those that the pool counts."""
        self.pool.check(request.block_ids for request in self._requests.values())

    def _kinds(self) -> tuple[_Kind, ...]:
        """What kinds of step to try, in order: the first that has work is taken."""
        if self.config.step_mode == "mixed":
            return ("mixed",)
        return ("decode", "prefill") if self._last_kind == "prefill" else ("prefill", "decode")

    def _schedule_running(self, step: StepBudget, able: Sequence[ScheduledRequest]) -> None:
        for request in able:
            if step.left == 0 or self._line.is_waiting(request):
                break  # whoever was preempted stood last, and so do all that come here
            num_new = step.chunk(request, request.num_computed_tokens, self._num_missing(request))
            if num_new > 0 and (num_new := self._make_room(request, num_new, step)) > 0:
                step.grant(request, num_new)

    def _num_missing(self, request: ScheduledRequest) -> int:
        num_missing = min(request.num_tokens_with_spec, self.max_num_tokens) - request.num_computed_tokens
        if num_missing == 0:
            raise ValueError(f"request {request.request_id!r} has {self.max_num_tokens} tokens: finish it")
        return num_missing

    def _make_room(self, request: ScheduledRequest, num_new: int, step: StepBudget) -> int:
        """Blocks for `num_new` more tokens, preempting others if need be; how many tokens they are for."""
        while (num_blocks := self._tables.num_lacking(request, num_new)) > self.pool.num_free:
            num_known = request.num_tokens - request.num_computed_tokens
            if num_new > num_known:
                num_new = num_known  # nobody is preempted for a guess
                continue
            if self._preempt(step) is request:
                return 0
        if num_blocks > 0:
            request.block_ids += self.pool.allocate(num_blocks)
        return num_new

    def _preempt(self, step: StepBudget) -> ScheduledRequest:
        victim = self._line.preempt()
        self._tables.release(victim)
        victim.num_computed_tokens = 0
        victim.spec_token_ids = []
        victim.num_preemptions += 1
        step.preempted.append(victim)
        return victim

    def _admit(self, step: StepBudget, is_batch_class: bool) -> None:
        for request, num_cached, is_follower in self._prospects(is_batch_class):
            num_new = 0 if is_follower else step.chunk(request, num_cached, request.num_tokens - num_cached)
            # A fair share may not reach the grid: nobody else has to wait for that.
            is_patient = is_follower or (self.config.policy == "fair" and self.config.chunk_grid > 0)
            if step.left == 0 or (num_new == 0 and not is_patient):
                break
            if len(self._line.running) == self.config.max_num_seqs:
                self._preempt(step)  # a batch-class request
            self._line.admit()
            self._tables.follow(request)
            if num_new > 0:
                step.grant(request, self._make_room(request, num_new, step))

    def _prospects(self, is_batch_class: bool) -> Iterator[tuple[ScheduledRequest, int, bool]]:
        """Who may be admitted: cached tokens, and whether it waits for a block that another computes."""
        line, (_, candidates) = self._line, self._turn(is_batch_class)
        # An interactive request that cannot be admitted lets no batch-class one pass.
        return self._tables.fitting(candidates if candidates[:1] == line.waiting[:1] else (), line.running)

    def _turn(self, is_batch_class: bool) -> tuple[Sequence[ScheduledRequest], Sequence[ScheduledRequest]]:
        return turns(self._line.running, self._line.waiting, self.config.max_num_seqs)[is_batch_class]

    def _needs(
        self, able: Sequence[ScheduledRequest], is_batch_class: bool
    ) -> list[tuple[ScheduledRequest, int, int]]:
        """Who could use tokens, who waits and will find a place included; computed and missing tokens."""
        needs = [(r, r.num_computed_tokens, self._num_missing(r)) for r in able]
        prospects = [
            (r, num, r.num_tokens - num)
            for r, num, is_follower in self._prospects(is_batch_class)
            if not is_follower
        ]
        return needs + prospects


def _is_of(kind: _Kind, request: ScheduledRequest) -> bool:
    return kind == "mixed" or (kind == "decode") == request.is_decoding
