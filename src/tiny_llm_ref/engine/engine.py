"""The engine: requests come and go between steps, and every step is one forward pass over packed tokens."""

import time
from collections.abc import Mapping, Sequence

from tiny_llm_lab.types import (
    Clock,
    Completion,
    EngineOutput,
    EventCallback,
    PagedModel,
    Prompt,
    Proposer,
    SamplingParams,
    SchedulerConfig,
    Tokenizer,
)

from ..cache.block_pool import BlockPool
from ..cache.prefix_cache import PrefixCache
from ..speculative.loop import SpecDecodeStats
from ..speculative.verify import standing_tokens
from .request_state import EngineRequest
from .run import EngineRun
from .scheduler import Scheduler
from .slo.budget_controller import StepPacer
from .step import EngineStep


class Engine:
    """Serves many requests on one model, a step at a time; not to be used from two threads at once."""

    def __init__(
        self,
        model: PagedModel,
        tokenizer: Tokenizer,
        config: SchedulerConfig = SchedulerConfig(),
        *,
        num_blocks: int = 512,
        block_size: int = 16,
        kv_bits: int | None = None,
        enable_prefix_caching: bool = True,
        proposer: Proposer | None = None,
        pacer: StepPacer | None = None,
        async_scheduling: bool = False,
        clock: Clock = time.perf_counter,
    ) -> None:
        """An engine without requests, whose keys and values have `num_blocks` blocks of `block_size` tokens.

        `kv_bits` 8 stores them in 8 bits (None: in the model's dtype).
        `proposer` guesses tokens for decodes (None: no speculation). `pacer` chooses every step's budget
        (None: config.max_num_batched_tokens always). `async_scheduling` (from task 3.4.10 on) begins a step
        of decodes before the tokens of the one in front are read; a proposer and a pacer, which need them,
        turn it off. Sets scheduler, kv_cache, prefix_cache (or None), spec_stats and async_scheduling.
        """
        self.model, self.tokenizer, self.proposer = model, tokenizer, proposer
        self.pacer = pacer
        pool = BlockPool(num_blocks, block_size)
        self.prefix_cache = PrefixCache(pool) if enable_prefix_caching else None
        self.scheduler = Scheduler(config, pool, self.prefix_cache)
        self.kv_cache = model.create_paged_kv_cache(num_blocks, block_size, kv_bits)
        self.spec_stats = None if proposer is None else SpecDecodeStats()
        self._clock = clock
        self._requests: dict[str, EngineRequest] = {}
        self._num_added = 0
        self.async_scheduling = async_scheduling and proposer is None and pacer is None
        self._ahead: EngineStep | None = None  # begun, and not told of yet

    @property
    def has_requests(self) -> bool:
        """Whether anybody waits or runs."""
        return bool(self._requests)

    def add(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        sampling: SamplingParams = SamplingParams(),
        *,
        priority: int = 0,
        is_batch_class: bool = False,
        arrival_s: float | None = None,
        prompt_idx: int | None = None,
    ) -> None:
        """Let a request wait for its turn.

        With `is_batch_class` nobody watches the answer grow: it takes what other requests leave.
        `arrival_s` None means now; `prompt_idx` None, the number of requests before it. Raises UserError
        for a request that can never be served, or whose id is in use; nothing else changes then.
        """
        request = EngineRequest(
            request_id,
            self.model,
            self.tokenizer,
            prompt,
            sampling,
            number=self._num_added if prompt_idx is None else prompt_idx,
            max_seq_len=min(self.scheduler.max_num_tokens, self.model.config.max_position_embeddings),
            priority=priority,
            is_batch_class=is_batch_class,
            arrival_s=self._clock() if arrival_s is None else arrival_s,
            clock=self._clock,
        )
        self.scheduler.add(request.scheduled)
        self._requests[request_id] = request
        self._num_added += 1

    def step(self) -> list[EngineOutput]:
        """Plan a step, compute it in one forward pass and one evaluation, and return what is new.

        An output for each request that got a token; ended ones have a completion and are forgotten. Without
        requests nothing happens. When computing fails, all requests end and the error goes on.
        """
        if not self._requests:
            return []
        try:
            step = self._ahead or self._begin()
            self._ahead = self._begin_behind(step) if self.async_scheduling else None
            drawn = step.read()
            if self.pacer is not None:
                self.pacer.record(step.parts, self._clock() - step.start_s)
            return self._publish(step, drawn)
        except BaseException:
            for request_id in list(self._requests):
                self.abort(request_id)
            raise

    def generate(
        self, prompts: Sequence[str | Sequence[int] | Prompt], on_event: EventCallback | None = None
    ) -> list[Completion]:
        """Answer every prompt (from 3.4.8 on); return one completion per prompt, in prompt order.

        Each is added when its arrival_s has passed, counted from the call. `on_event` is called as in
        `batch_generate`: with what is newly computed of a prompt, each token and each end. A prompt that
        cannot be served becomes a completion with finish_reason "error"; the others are not affected.
        Whatever is raised, no request is left. Raises ValueError when the engine has requests already.
        """
        return EngineRun(self, prompts, on_event, self._clock).run()

    def abort(self, request_id: str) -> bool:
        """Drop a request, whatever its state, and give its blocks back; False when there is none."""
        if self._requests.pop(request_id, None) is None:
            return False
        self.scheduler.abort(request_id)
        if self.proposer is not None:
            self.proposer.forget(request_id)
        if not self._requests:
            self._ahead = None  # for nobody
            self.scheduler.check()
        return True

    def release(self) -> None:
        """Drop all requests and give the memory back; the engine cannot be used afterwards."""
        for request_id in list(self._requests):
            self.abort(request_id)
        self.kv_cache.release()

    def _guess(self) -> None:
        if self.proposer is None:
            return
        for scheduled in self.scheduler.running:
            request = self._requests[scheduled.request_id]
            if scheduled.is_decoding and not scheduled.spec_token_ids and request.room_for_guesses > 0:
                draft = self.proposer.propose(scheduled.token_ids, scheduled.request_id, request.sampler)
                scheduled.spec_token_ids = list(draft.token_ids[: request.room_for_guesses])

    def _begin(self) -> EngineStep:
        """Plan a step by all that is known, and begin it."""
        self._guess()
        budget = None
        if self.pacer is not None:
            budget = self.pacer.token_budget(
                self._clock(), self.scheduler, lambda name: self._requests[name].last_token_s
            )
        start_s = self._clock()
        plan = self.scheduler.schedule(budget)
        requests = [self._requests[name] for name in plan.num_scheduled_tokens]
        return EngineStep(self.model, self.kv_cache, plan, requests, start_s)

    def _begin_behind(self, step: EngineStep) -> EngineStep | None:
        """The step behind one that is still computed, if there will be one for just these requests."""
        if any(request.room_for_guesses <= 0 for request in step.requests):
            return None  # somebody's last token is under way
        plan = self.scheduler.schedule_behind(step.plan)
        if plan is None:
            return None
        return EngineStep(self.model, self.kv_cache, plan, step.requests, self._clock(), behind=step)

    def _standing(self, request: EngineRequest, drawn: Sequence[int]) -> list[int]:
        """The tokens that stand: up to the first that was not guessed."""
        guess = request.scheduled.spec_token_ids[: len(drawn) - 1]
        if self.spec_stats is None or not guess:
            return list(drawn)
        standing = standing_tokens(drawn, guess)
        self.spec_stats.observe(len(guess), len(standing) - 1)
        return standing

    def _publish(self, step: EngineStep, drawn: Mapping[EngineRequest, list[int]]) -> list[EngineOutput]:
        """Tell everybody but those who left while the step was computed."""
        outputs, sampled = [], {}
        for request, tokens in drawn.items():
            name = request.scheduled.request_id
            if self._requests.get(name) is request:
                sampled[name] = self._standing(request, tokens)
                outputs.append(request.accept(sampled[name], step.scores.get(request, ())))
        self.scheduler.commit(step.plan, sampled)
        for output in outputs:
            if output.completion is not None:
                self.abort(output.request_id)
        return outputs
