"""The engine: text and tokens in, text and events out, for many requests in the same steps."""

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
from tiny_llm_lab.types.computing.pictures import NO_PICTURES, NoPictures


class Engine:
    """Takes prompts and returns text. Its core computes."""

    def __init__(
        self,
        model: PagedModel,
        tokenizer: Tokenizer,
        config: SchedulerConfig = SchedulerConfig(),
        options: EngineOptions = EngineOptions(),
    ) -> None:
        """No requests yet. Sets tokenizer, and core, an `EngineCore` of the other arguments."""
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
        pictures: NoPictures = NO_PICTURES,
    ) -> None:
        """Queue a request.

        A request of `priority_class` "batch" runs only on spare capacity. `arrival_s` None means now.
        `prompt_idx` None means the number of requests added before. `processors` (from task 3.7.3 on) change
        the logits of its tokens, in their order, after its own `Penalties`. The sequence gets the
        `cache_salt` of `sampling`. Raises UserError, and changes nothing, if the request can never be served
        or its id is in use.
        """
        raise NotImplementedError("task 3.6.5")

    def step(self) -> list[EngineOutput]:
        """Compute one step, in one forward pass and one evaluation; return what is new.

        All tokens of a step have the same time, the core's `step_end_s`. Each request that got a token has an
        output. If the request has ended it has left the engine, and its output has a completion. Returns []
        if there are no requests. If anything raises, all requests are dropped, as in `EngineCore.advance`.
        """
        raise NotImplementedError("task 3.6.5")

    def abort(self, request_id: str) -> bool:
        """Drop a request in any state. Returns False if there is no such request."""
        raise NotImplementedError("task 3.6.5")

    def release(self) -> None:
        """Drop all requests and free the memory. You can't use the engine afterwards."""
        raise NotImplementedError("task 3.6.5")

    def generate(
        self, prompts: Sequence[str | Sequence[int] | Prompt], on_event: EventCallback | None = None
    ) -> list[Completion]:
        """Answer every prompt (from 3.6.6 on); return one completion per prompt, in prompt order.

        A prompt is added, with its index in `prompts` as request id, once its arrival_s seconds have passed
        since the call. `on_event` is called with every chunk, token and end, as in `batch_generate`. It may
        call `add` and `abort`: an added request is served, and its events have a prompt_idx above those in
        `prompts`; an aborted prompt ends with finish_reason "abort". A prompt that can't be served becomes a
        completion with finish_reason "error"; without `on_event` such prompts are reported on stderr. The
        engine has no requests afterwards, even after an error. Raises ValueError if it already has requests.
        """
        raise NotImplementedError("task 3.6.6")
