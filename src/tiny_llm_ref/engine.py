"""The engine: requests come and go between steps, and every step is one forward pass over packed tokens."""

import time
from collections.abc import Mapping, Sequence
from typing import cast

import mlx.core as mx

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
    StepPlan,
    Tokenizer,
)

from .acceptance import standing_tokens
from .block_pool import BlockPool
from .engine_request import EngineRequest
from .engine_run import EngineRun
from .paged_kv_cache import StepLayout
from .prefix_cache import PrefixCache
from .sampler import make_sampler
from .scheduler import Scheduler
from .speculative import SpecDecodeStats
from .step_pacer import StepPacer


class Engine:
    """Serves many requests on one model, a step at a time; not to be used from two threads at once."""

    def __init__(
        self,
        model: PagedModel,
        tokenizer: Tokenizer,
        config: SchedulerConfig = SchedulerConfig(),
        *,
        num_blocks: int = 512,
        block_size: int = 32,
        kv_bits: int | None = None,
        enable_prefix_caching: bool = True,
        proposer: Proposer | None = None,
        pacer: StepPacer | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        """An engine without requests, whose keys and values have `num_blocks` blocks of `block_size` tokens.

        `kv_bits` 8 stores them in 8 bits (None: in the model's dtype).
        `proposer` guesses tokens for decodes (None: no speculation). `pacer` chooses every step's budget
        (None: config.max_num_batched_tokens always). Sets scheduler, kv_cache, prefix_cache (or None) and
        spec_stats.
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
        self._likeliest = make_sampler()

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
            self._guess()
            budget = None if self.pacer is None else self.pacer.token_budget(self._clock(), self._requests)
            start_s = self._clock()
            plan = self.scheduler.schedule(budget)
            parts = self._parts(plan)
            sampled = self._compute(plan, parts)
            if self.pacer is not None:
                self.pacer.record(parts, self._clock() - start_s)
            return self._publish(plan, sampled)
        except BaseException:
            for request_id in list(self._requests):
                self.abort(request_id)
            raise

    def generate(
        self, prompts: Sequence[str | Sequence[int] | Prompt], on_event: EventCallback | None = None
    ) -> list[Completion]:
        """Answer every prompt (from 3.4.7 on); return one completion per prompt, in prompt order.

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

    def _parts(self, plan: StepPlan) -> list[tuple[Sequence[int], int, int]]:
        """(block_ids, num_computed_tokens, num_new_tokens) of each planned request."""
        planned = [
            (self._requests[name].scheduled, count) for name, count in plan.num_scheduled_tokens.items()
        ]
        return [(request.block_ids, request.num_computed_tokens, count) for request, count in planned]

    def _compute(
        self, plan: StepPlan, parts: Sequence[tuple[Sequence[int], int, int]]
    ) -> dict[str, list[int]]:
        """The new tokens of every request whose known tokens are all computed after this step."""
        layout = StepLayout.of(self.kv_cache.block_size, parts)
        tokens: list[int] = []
        rows: list[int] = []
        askers: list[tuple[EngineRequest, int]] = []  # with the number of rows to draw from
        for name, (_, computed, new) in zip(plan.num_scheduled_tokens, parts, strict=True):
            request = self._requests[name]
            tokens += request.scheduled.tokens_between(computed, computed + new)
            if request.scheduled.needs_sample(new):
                num_rows = computed + new - request.scheduled.num_tokens + 1
                rows += range(len(tokens) - num_rows, len(tokens))
                askers.append((request, num_rows))
        layers = self.kv_cache.begin_step(layout)
        logits = self.model(mx.array(tokens)[:, None], layout.positions, layers, rows=rows)[:, -1]
        draws = self._draws(logits, askers)
        scores = [request.scores for request, _ in askers]
        mx.eval(draws, scores, self.kv_cache.pools)
        return {
            request.scheduled.request_id: self._standing(request, cast(list[int], drawn.tolist()))
            for (request, _), drawn in zip(askers, draws, strict=True)
        }

    def _draws(self, logits: mx.array, askers: Sequence[tuple[EngineRequest, int]]) -> list[mx.array]:
        """What every request draws from its rows of `logits` [rows, V], lazily."""
        # One pass over all rows serves the greedy ones together.
        is_greedy = [request.answer.sampling.temperature == 0 for request, _ in askers]
        likeliest = self._likeliest(logits) if any(is_greedy) else None
        draws, first = [], 0
        for greedy, (request, count) in zip(is_greedy, askers, strict=True):
            rows = slice(first, first + count)
            draws.append(likeliest[rows] if greedy and likeliest is not None else request.draws(logits[rows]))
            request.score(logits[rows], draws[-1])
            first += count
        return draws

    def _standing(self, request: EngineRequest, drawn: Sequence[int]) -> list[int]:
        """The tokens that stand: up to the first that was not guessed."""
        guess = request.scheduled.spec_token_ids[: len(drawn) - 1]
        if self.spec_stats is None or not guess:
            return list(drawn)
        standing = standing_tokens(drawn, guess)
        self.spec_stats.observe(len(guess), len(standing) - 1)
        return standing

    def _publish(self, plan: StepPlan, sampled: Mapping[str, list[int]]) -> list[EngineOutput]:
        outputs = [self._requests[name].accept(tokens) for name, tokens in sampled.items()]
        self.scheduler.commit(plan, sampled)
        for output in outputs:
            if output.completion is not None:
                self.abort(output.request_id)
        return outputs
