"""The engine's core: plan a step, launch it, read it, commit it."""

from collections.abc import Mapping
from contextlib import ExitStack

from tiny_llm_lab.types import AllDrafts, EngineOptions, PagedModel, Proposer, SchedulerConfig, StepStats
from tiny_llm_lab.types.computing.paged import PagedCache
from tiny_llm_lab.types.scheduling.defaults import FixedBudget, NoSpeculation, ignore_step
from tiny_llm_lab.types.scheduling.no_states import NO_SNAPSHOTS, NO_STATES

from ..cache.block_pool import BlockPool
from ..cache.prefix_cache import PrefixCache
from ..cache.snapshots import StateSnapshots
from .next_step import may_launch_early
from .request_state import RequestState
from .scheduler import Scheduler
from .sequence_states import SequenceStates
from .speculation import Speculation
from .step import InflightStep, launch, sample_late


class EngineCore:
    """Requests on one model, one step at a time. Don't use it from two threads at once."""

    def __init__(
        self,
        model: PagedModel,
        config: SchedulerConfig = SchedulerConfig(),
        options: EngineOptions = EngineOptions(),
    ) -> None:
        """Allocate the blocks for keys and values; no requests yet.

        `EngineOptions` (tiny_llm_lab.types) says what its fields mean, and which of them belong to later
        tasks. types/scheduling/defaults.py has a default object for each option. With a proposer there is a
        `Speculation`, whose gate is the draft_gate or `AllDrafts`. Sets model, config, options, scheduler,
        kv_cache, prefix_cache (or None), spec_stats (or None), async_scheduling (whether steps may be
        launched early), and step_end_s, the time on the options' clock when the last step's tokens were read
        (0.0 before the first). Raises UserError like `EngineOptions.require_chunks`.
        """
        options.require_chunks(config)
        self.model, self.config, self.options = model, config, options
        self._budget = options.budget_controller or FixedBudget()
        self._on_step = options.on_step or ignore_step
        self._speculation: Speculation | NoSpeculation = NoSpeculation()
        self._proposer = options.proposer or Proposer()
        if options.proposer:
            gate, vocab_size = options.draft_gate or AllDrafts(), model.config.vocab_size
            is_timed = options.draft_gate is not None
            self._speculation = Speculation(options.proposer, gate, vocab_size, options.clock, is_timed)
        self.spec_stats = self._speculation.stats
        self.async_scheduling = options.is_ahead
        self.step_end_s = 0.0
        self._requests: dict[str, RequestState] = {}
        self._inflight: InflightStep | None = None  # launched, and not yet read
        self._lay_out()

    def reconfigure(self, config: SchedulerConfig) -> None:
        """Use `config` for the next steps. Raises UserError like `Scheduler.reconfigure` and `__init__`."""
        self.options.require_chunks(config)
        self.scheduler.reconfigure(config)
        self.config = config

    @property
    def has_requests(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._requests)

    @property
    def kv_caches(self) -> list[PagedCache]:
        """The blocks of the model, and those of what drafts for it (from task 3.9.6 on)."""
        return [self.kv_cache, *self._proposer.caches]

    def admit(self, request: RequestState) -> None:
        """Queue a request. Raises UserError if it can never be served, or if its id is in use."""
        self.scheduler.add(request.sequence)
        self._requests[request.sequence.request_id] = request

    def advance(self) -> list[RequestState]:
        """Compute one step, in one forward pass and one evaluation; return the requests it served, in order.

        Returns [] if there are no requests. If anything raises, the core drops all requests, replaces the
        blocks, prefix cache and scheduler by empty ones, and raises the error again.
        """
        if not self._requests:
            return []
        try:
            self.options.prefix_disk.before_step()
            if not (self.scheduler.waiting or self.scheduler.running):
                return []  # all requests wait for their prefixes from the disk
            step = self._inflight or self._launch()
            is_early = self.async_scheduling and may_launch_early(step, self.scheduler.queue)
            is_early = is_early and self._speculation.skips(step.requests)
            self._inflight = self._launch_next(step) if is_early else None
            sampled = step.read()
            start_s = max(step.start_s, self.step_end_s)
            self.step_end_s = end_s = self.options.clock()
            self._speculation.observe_step(step.plan, sampled.values(), end_s - start_s)
            served = self._commit(step, sampled, end_s)
            if self._inflight and self._inflight.is_late:
                self._inflight = sample_late(self._inflight)
            return served
        except BaseException:
            self._fail()
            raise

    def abort(self, request_id: str) -> bool:
        """Drop a request in any state and free its blocks. Returns False if there is no such request.

        An answer that has not ended ends with finish_reason "abort".
        """
        if request_id not in self._requests:
            return False
        request = self._requests.pop(request_id)
        if not request.answer.is_done:
            request.answer.abort()
        self.scheduler.abort(request_id)
        if not self._requests:
            self._inflight = None  # serves no request any more
            self.scheduler.check()
        self._speculation.forget(request_id)
        self.options.prefix_disk.forget(request_id)
        return True

    def abort_all(self) -> None:
        """Drop all requests."""
        with ExitStack() as stack:  # all of them, even if dropping one raises
            for request_id in list(self._requests):
                stack.callback(self.abort, request_id)

    def release(self) -> None:
        """Drop all requests and free the memory. You can't use the engine afterwards."""
        self.abort_all()
        self.options.prefix_disk.release()
        self._free()

    def _free(self) -> None:
        """Free the blocks, those of a draft model too."""
        for cache in (self.kv_cache, *self._proposer.caches):
            cache.release()

    def _lay_out(self) -> None:
        """Create empty blocks, and a scheduler over them."""
        shape = self.options
        pool = BlockPool(shape.num_blocks, shape.block_size)
        snapshots, states, is_cached = NO_SNAPSHOTS, NO_STATES, shape.enable_prefix_caching
        if self.model.config.hybrid:
            snapshots = StateSnapshots(shape.num_states, shape.snapshot_every)
            states, is_cached = SequenceStates(snapshots), is_cached and shape.num_states > 1
        self.prefix_cache = PrefixCache(pool, snapshots=snapshots) if is_cached else None
        self.scheduler = Scheduler(self.config, pool, self.prefix_cache, states)
        self.kv_cache = self.model.create_paged_kv_cache(shape.num_blocks, shape.block_size, shape.kv_bits)
        self._proposer.create_cache(shape.num_blocks, shape.block_size, shape.kv_bits)

    def _fail(self) -> None:
        """Drop all requests, and replace the blocks, because a failed step may have left wrong counts."""
        requests, self._requests, self._inflight = self._requests, {}, None
        self._free()
        self._lay_out()
        with ExitStack() as stack:
            for name in requests:
                stack.callback(self._speculation.forget, name)

    def _launch(self) -> InflightStep:
        """Plan a step from all that is known, and launch it."""
        running = [self._requests[each.request_id] for each in self.scheduler.running]
        self._speculation.draft(running, self.scheduler)
        start_s = self.options.clock()
        budget = self._budget.token_budget(start_s, self.scheduler, self._last_token_s)
        plan = self.scheduler.schedule(self._speculation.token_budget(budget, self.scheduler))
        requests = [self._requests[name] for name in plan.num_scheduled_tokens]
        return launch(self.model, self.kv_cache, plan, requests, start_s)

    def _launch_next(self, step: InflightStep) -> InflightStep | None:
        """Launch the next step of the same requests while `step` runs. Returns None if there is no room."""
        plan = self.scheduler.schedule_next(step.plan)
        if not plan:
            return None
        return launch(self.model, self.kv_cache, plan, step.requests, self.options.clock(), step)

    def _last_token_s(self, request_id: str) -> float:
        return self._requests[request_id].answer.last_token_s

    def _commit(
        self, step: InflightStep, sampled: Mapping[RequestState, list[int]], end_s: float
    ) -> list[RequestState]:
        """Record a step for its requests, except requests that were aborted while it was computed."""
        served = [each for each in step.requests if self._requests.get(each.sequence.request_id) is each]
        accepted = {}
        for request in served:
            if request in sampled:
                tokens = self._speculation.accepted(request, sampled[request])
                accepted[request.sequence.request_id] = tokens
                request.accept(tokens, step.scores.get(request, ()))
        self.scheduler.commit(step.plan, accepted)
        for sequence in (each.sequence for each in served if each.sequence.states.num_drafted):
            self.kv_cache.cut_back(sequence.states.slot, sequence.num_computed_tokens)
        computed = list(zip(step.requests, step.slices, strict=True))
        step_s = 0.0 if self._inflight else end_s - step.start_s
        self._budget.record(step.slices, end_s - step.start_s + self._speculation.follow(computed, step_s))
        for request in served:
            request.committed()
            if request.answer.is_done:
                self.abort(request.sequence.request_id)
        self._on_step(step.plan, self._stats(step, end_s))
        return served

    def _stats(self, step: InflightStep, end_s: float) -> StepStats:
        queue = self.scheduler.queue
        num_prompt_tokens = sum(
            min(at.num_new, num_prompt - at.num_computed)
            for request, at in zip(step.requests, step.slices, strict=True)
            if (num_prompt := len(request.sequence.prompt_token_ids)) > at.num_computed
        )
        num_free = self.scheduler.pool.num_free
        return StepStats(
            step.start_s, end_s, num_prompt_tokens, len(queue.running), len(queue.waiting), num_free
        )
