"""The engine: text and tokens in, text and events out, whatever else is served in the same steps."""

import time
from collections.abc import Sequence

from tiny_llm_lab.types import (
    Clock,
    Completion,
    EngineOutput,
    EventCallback,
    OnStep,
    PagedModel,
    PriorityClass,
    Prompt,
    Proposer,
    SamplingParams,
    SchedulerConfig,
    Tokenizer,
)

from .core import EngineCore
from .slo.budget_controller import BudgetController


class Engine(EngineCore):
    """An `EngineCore` that takes prompts and returns text."""

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
        budget_controller: BudgetController | None = None,
        async_scheduling: bool | None = None,
        on_step: OnStep | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        """An engine without requests; the arguments besides `tokenizer` are those of `EngineCore`."""
        raise NotImplementedError("task 3.6.4")

    def add(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        sampling: SamplingParams = SamplingParams(),
        *,
        priority: int = 0,
        priority_class: PriorityClass = "interactive",
        arrival_s: float | None = None,
        prompt_idx: int | None = None,
    ) -> None:
        """Queue a request.

        `priority_class` "batch" takes what interactive requests leave. `arrival_s` None means now;
        `prompt_idx` None, the number of requests added before. Raises UserError for a request that can
        never be served, or whose id is in use; nothing else changes then.
        """
        raise NotImplementedError("task 3.6.4")

    def step(self) -> list[EngineOutput]:
        """Plan a step, compute it in one forward pass and one evaluation, and return what is new.

        An output for each request that got a token; ended ones have a completion and are forgotten. Without
        requests nothing happens. When computing fails, all requests end, the blocks are laid out anew, and
        the error goes on.
        """
        raise NotImplementedError("task 3.6.4")

    def generate(
        self, prompts: Sequence[str | Sequence[int] | Prompt], on_event: EventCallback | None = None
    ) -> list[Completion]:
        """Answer every prompt (from 3.6.5 on); return one completion per prompt, in prompt order.

        Each is added, with its place in `prompts` as id, when its arrival_s has passed, counted from the
        call. `on_event` is called as in `batch_generate`: with what is newly computed of a prompt, each
        token and each end. It may call `add` and `abort`: an added request is served, and its events come
        with a prompt_idx of its own; an aborted prompt ends with finish_reason "abort". A prompt that cannot
        be served becomes a completion with finish_reason "error"; without `on_event` such prompts are
        reported on stderr. Whatever is raised, no request is left. Raises ValueError when the engine has
        requests already.
        """
        raise NotImplementedError("task 3.6.4")
