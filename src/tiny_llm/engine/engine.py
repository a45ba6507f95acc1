"""The engine: text and tokens in, text and events out, whatever else is served in the same steps."""

from collections.abc import Sequence

from tiny_llm_lab.types import (
    Completion,
    EngineOptions,
    EngineOutput,
    EventCallback,
    LogitsProcessor,
    PagedModel,
    PriorityClass,
    Prompt,
    SamplingParams,
    SchedulerConfig,
    Tokenizer,
)


class Engine:
    """Takes prompts and returns text; its core computes."""

    def __init__(
        self,
        model: PagedModel,
        tokenizer: Tokenizer,
        config: SchedulerConfig = SchedulerConfig(),
        options: EngineOptions = EngineOptions(),
    ) -> None:
        """No requests yet. Sets tokenizer and core, an `EngineCore` of the other arguments."""
        raise NotImplementedError("task 3.6.5")

    @property
    def has_requests(self) -> bool:
        """Whether any request waits or runs."""
        raise NotImplementedError("task 3.6.5")

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
        processors: Sequence[LogitsProcessor] = (),
    ) -> None:
        """Queue a request.

        A request of `priority_class` "batch" runs on spare capacity only. `arrival_s` None means now;
        `prompt_idx` None, the number of requests added before. `processors` (from task 3.7.3 on) change the
        logits of its tokens, in their order, behind its own `Penalties`. Raises UserError, and changes
        nothing, for a request that can never be served, or whose id is in use.
        """
        raise NotImplementedError("task 3.6.5")

    def step(self) -> list[EngineOutput]:
        """Compute one step, in one forward pass and one evaluation; return what is new.

        All tokens of a step have one time, the core's `step_end_s`. There is an output for each request that
        got a token; that of a request which has now ended, and has left the engine, has a completion. Returns
        [] without requests. When anything raises, all requests are dropped, as in `EngineCore.advance`.
        """
        raise NotImplementedError("task 3.6.5")

    def abort(self, request_id: str) -> bool:
        """Drop a request, whatever its state; False when there is none."""
        raise NotImplementedError("task 3.6.5")

    def release(self) -> None:
        """Drop all requests and give the memory back; the engine cannot be used afterwards."""
        raise NotImplementedError("task 3.6.5")

    def generate(
        self, prompts: Sequence[str | Sequence[int] | Prompt], on_event: EventCallback | None = None
    ) -> list[Completion]:
        """Answer every prompt (from 3.6.6 on); return one completion per prompt, in prompt order.

        Each is added, with its index in `prompts` as request id, when its arrival_s after the call has
        passed. `on_event` is called with every chunk, token and end, as in `batch_generate`. It may call
        `add` and `abort`: an added request is served, and its events have a prompt_idx beyond those of
        `prompts`; an aborted prompt ends with finish_reason "abort". A prompt that cannot be served becomes
        a completion with finish_reason "error"; without `on_event` such prompts are reported on stderr.
        The engine has no requests afterwards, also when an error is raised. Raises ValueError when it has
        requests already.
        """
        raise NotImplementedError("task 3.6.6")
