"""The engine: requests come and go between steps, and every step is one forward pass over packed tokens."""

import time
from collections.abc import Sequence

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

from .slo.budget_controller import StepPacer


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
        raise NotImplementedError("task 3.4.7")

    @property
    def has_requests(self) -> bool:
        """Whether anybody waits or runs."""
        raise NotImplementedError("task 3.4.7")

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
        raise NotImplementedError("task 3.4.7")

    def step(self) -> list[EngineOutput]:
        """Plan a step, compute it in one forward pass and one evaluation, and return what is new.

        An output for each request that got a token; ended ones have a completion and are forgotten. Without
        requests nothing happens. When computing fails, all requests end and the error goes on.
        """
        raise NotImplementedError("task 3.4.7")

    def generate(
        self, prompts: Sequence[str | Sequence[int] | Prompt], on_event: EventCallback | None = None
    ) -> list[Completion]:
        """Answer every prompt (from 3.4.8 on); return one completion per prompt, in prompt order.

        Each is added when its arrival_s has passed, counted from the call. `on_event` is called as in
        `batch_generate`: with what is newly computed of a prompt, each token and each end. A prompt that
        cannot be served becomes a completion with finish_reason "error"; the others are not affected.
        Whatever is raised, no request is left. Raises ValueError when the engine has requests already.
        """
        raise NotImplementedError("task 3.4.7")

    def abort(self, request_id: str) -> bool:
        """Drop a request, whatever its state, and give its blocks back; False when there is none."""
        raise NotImplementedError("task 3.4.7")

    def release(self) -> None:
        """Drop all requests and give the memory back; the engine cannot be used afterwards."""
        raise NotImplementedError("task 3.4.7")
