"""The engine's core: plan a step, launch it, read it, commit it."""

import time
from collections.abc import Mapping
from contextlib import ExitStack

from tiny_llm_lab.types import (
    Clock,
    DraftGate,
    OnStep,
    PagedModel,
    Proposer,
    SchedulerConfig,
    StepStats,
    UserError,
    is_async_scheduling,
)
from tiny_llm_lab.types.scheduling.serving import BudgetController

from ..cache.block_pool import BlockPool
from ..cache.prefix_cache import PrefixCache
from .request_state import RequestState
from .scheduler import Scheduler
from .speculation import Speculation
from .step import EngineStep


class EngineCore:
    """Requests on one model, a step at a time; not to be used from two threads at once."""

    def __init__(
        self,
        model: PagedModel,
        config: SchedulerConfig = SchedulerConfig(),
        *,
        num_blocks: int = 512,
        block_size: int = 16,
        kv_bits: int | None = None,
        enable_prefix_caching: bool = True,
        proposer: Proposer | None = None,
        budget_controller: BudgetController | None = None,
        draft_gate: DraftGate | None = None,
        async_scheduling: bool | None = None,
        on_step: OnStep | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Allocate `num_blocks` blocks of `block_size` tokens for keys and values; no requests yet.

        `kv_bits` 8 stores them in 8 bits (None: in the model's dtype). `proposer` (from task 3.8.6 on) drafts
        tokens for decodes (None: no speculation), and `draft_gate` (from task 3.8.7 on) chooses the drafts
        that are verified (None: all). `budget_controller` (from task 3.7.3 on) chooses every step's token
        budget (None: always config.max_num_batched_tokens). `async_scheduling` (from task 3.6.8 on) launches
        a step of decodes before the tokens of the step before are read, None does so on a GPU; a proposer or
        a controller needs these tokens and turns it off, as processors do in the steps of their
        requests. `on_step` is called after every step with its plan and `StepStats`. Sets config, scheduler,
        kv_cache, prefix_cache (or None), spec_stats (or None), async_scheduling and step_end_s, the time on
        `clock` at which the tokens of the last step were read (0.0 before the first). Raises UserError for a
        controller together with chunk_grid or without chunked prefill: its budget may be smaller than any
        chunk that the scheduler could then take.
        """
        _require_chunks(config, budget_controller)
        self.model, self.config = model, config
        self.budget_controller = budget_controller
        self._speculation: Speculation | None = None
        if proposer is not None:
            self._speculation = Speculation(proposer, draft_gate, model.config.vocab_size, clock)
        self.spec_stats = None if self._speculation is None else self._speculation.stats
        needs_tokens = proposer is not None or budget_controller is not None
        self.async_scheduling = is_async_scheduling(async_scheduling) and not needs_tokens
        self._cache_shape = (num_blocks, block_size, kv_bits)
        self._enable_prefix_caching = enable_prefix_caching
        self._on_step, self._clock = on_step, clock
        self.step_end_s = 0.0
        self._requests: dict[str, RequestState] = {}
        self._inflight: EngineStep | None = None  # launched, and not yet read
        self._lay_out()

    def reconfigure(self, config: SchedulerConfig) -> None:
        """Schedule by `config` from the next step on; UserError as `Scheduler.reconfigure` and `__init__`."""
        _require_chunks(config, self.budget_controller)
        self.scheduler.reconfigure(config)
        self.config = config

    @property
    def has_requests(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._requests)

    def admit(self, request: RequestState) -> None:
        """Queue a request. Raises UserError when it can never be served, or its id is in use."""
        self.scheduler.add(request.sequence)
        self._requests[request.sequence.request_id] = request

    def advance(self) -> list[RequestState]:
        """Compute one step, in one forward pass and one evaluation; return the requests it served, in order.

        Returns [] without requests. When anything raises, all requests are dropped, empty blocks, prefix
        cache and scheduler replace the old ones, and the error is raised again.
        """
        if not self._requests:
            return []
        try:
            step = self._inflight or self._launch()
            self._inflight = self._launch_next(step) if self.async_scheduling else None
            sampled = step.read()
            self.step_end_s = end_s = self._clock()
            if self.budget_controller is not None:
                self.budget_controller.record(step.parts, end_s - step.start_s)
            return self._commit(step, sampled, end_s)
        except BaseException:
            self._fail()
            raise

    def abort(self, request_id: str) -> bool:
        """Drop a request, whatever its state, and free its blocks; False when there is none.

        An answer that has not ended ends with finish_reason "abort".
        """
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        if not request.answer.is_done:
            request.answer.abort()
        self.scheduler.abort(request_id)
        if not self._requests:
            self._inflight = None  # serves no request any more
            self.scheduler.check()
        if self._speculation is not None:
            self._speculation.forget(request_id)
        return True

    def abort_all(self) -> None:
        """Drop all requests."""
        with ExitStack() as stack:  # all of them, even when dropping one raises
            for request_id in list(self._requests):
                stack.callback(self.abort, request_id)

    def release(self) -> None:
        """Drop all requests and give the memory back; the engine cannot be used afterwards."""
        self.abort_all()
        self.kv_cache.release()

    def _lay_out(self) -> None:
        """Empty blocks, and a scheduler over them."""
        num_blocks, block_size, kv_bits = self._cache_shape
        pool = BlockPool(num_blocks, block_size)
        self.prefix_cache = PrefixCache(pool) if self._enable_prefix_caching else None
        self.scheduler = Scheduler(self.config, pool, self.prefix_cache)
        self.kv_cache = self.model.create_paged_kv_cache(num_blocks, block_size, kv_bits)

    def _fail(self) -> None:
        """Drop all requests, and replace blocks that a step may have left half accounted for."""
        requests, self._requests, self._inflight = self._requests, {}, None
        self.kv_cache.release()
        self._lay_out()
        with ExitStack() as stack:
            for name in requests:
                if self._speculation is not None:
                    stack.callback(self._speculation.forget, name)

    def _launch(self) -> EngineStep:
        """Plan a step from all that is known, and launch it."""
        if self._speculation is not None:
            decoding = [each for each in self.scheduler.running if each.is_decoding]
            self._speculation.draft([self._requests[each.request_id] for each in decoding])
        budget = None
        if self.budget_controller is not None:
            budget = self.budget_controller.token_budget(
                self._clock(), self.scheduler, lambda name: self._requests[name].answer.last_token_s
            )
        start_s = self._clock()
        plan = self.scheduler.schedule(budget)
        requests = [self._requests[name] for name in plan.num_scheduled_tokens]
        return EngineStep(self.model, self.kv_cache, plan, requests, start_s)

    def _launch_next(self, step: EngineStep) -> EngineStep | None:
        """Launch the next step while `step` is running, if it will have the same requests."""
        if any(each.processors or each.answer.max_draft_tokens <= 0 for each in step.requests):
            return None  # a last token is under way, or one that processors need
        plan = self.scheduler.schedule_next(step.plan)
        if plan is None:
            return None
        return EngineStep(self.model, self.kv_cache, plan, step.requests, self._clock(), previous=step)

    def _commit(
        self, step: EngineStep, sampled: Mapping[RequestState, list[int]], end_s: float
    ) -> list[RequestState]:
        """Record a step for all requests but those that were aborted while it was computed."""
        served = [each for each in step.requests if self._requests.get(each.sequence.request_id) is each]
        accepted = {}
        if self._speculation is not None:
            self._speculation.observe_step(step.plan, sampled, end_s)
        for request in served:
            if request in sampled:
                tokens = sampled[request]
                if self._speculation is not None:
                    tokens = self._speculation.accepted(request, tokens)
                accepted[request.sequence.request_id] = tokens
                request.accept(tokens, step.scores.get(request, ()))
        self.scheduler.commit(step.plan, accepted)
        for request in served:
            request.committed()
            if request.answer.is_done:
                self.abort(request.sequence.request_id)
        if self._on_step is not None:
            self._on_step(step.plan, self._stats(step, end_s))
        return served

    def _stats(self, step: EngineStep, end_s: float) -> StepStats:
        scheduler = self.scheduler
        num_prompt_tokens = sum(
            min(new, max(0, len(request.sequence.prompt_token_ids) - computed))
            for request, (_, computed, new) in zip(step.requests, step.parts, strict=True)
        )
        num_running, num_waiting = len(scheduler.running), len(scheduler.waiting)
        return StepStats(
            step.start_s, end_s, num_prompt_tokens, num_running, num_waiting, scheduler.pool.num_free
        )


def _require_chunks(config: SchedulerConfig, controller: BudgetController | None) -> None:
    if controller is not None and (config.chunk_grid or not config.enable_chunked_prefill):
        raise UserError("a latency SLO sizes chunks: set chunk_grid to 0 and keep chunked prefill on")
