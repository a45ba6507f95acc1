"""The engine: text and tokens in, text and events out, for many requests in the same steps."""

from collections.abc import Sequence

from tiny_llm_lab.types import (
    Arrival,
    Arrivals,
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
    UserError,
    prompt_token_ids,
    require_room,
    require_usable,
)
from tiny_llm_lab.types.computing.pictures import NO_PICTURES, NoPictures

from ..generate.answer import Answer
from .core import EngineCore
from .request_state import RequestState
from .run import PromptRun
from .sequence import TokenSequence


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
        self.core = EngineCore(model, config, options)
        self.tokenizer = tokenizer
        self._num_added = 0
        self._run: PromptRun | None = None  # of the current call of `generate`

    @property
    def has_requests(self) -> bool:
        """Whether any request waits or runs."""
        return self.core.has_requests

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
        tokens = prompt_token_ids(self.tokenizer, prompt, self.core.model.config)
        asked = Prompt(
            tokens,
            sampling,
            priority=priority,
            priority_class=priority_class,
            processors=tuple(processors),
            pictures=pictures,
        )
        number = self._num_added if prompt_idx is None else prompt_idx
        arrived_s = self.core.options.clock() if arrival_s is None else arrival_s
        self._start(request_id, Arrival(number, asked, arrived_s), tokens)

    def _start(self, request_id: str, arrival: Arrival, tokens: Sequence[int]) -> None:
        prompt, core = arrival.prompt, self.core
        positions = core.model.config.max_position_embeddings
        require_room(len(tokens), positions, "the model's max_position_embeddings")
        require_usable(prompt.sampling, prompt.processors, core.model.config.vocab_size)
        sequence = TokenSequence(
            request_id, tokens, prompt.priority, arrival.arrival_s, prompt.priority_class
        )
        sequence.skip_reading_prefix_cache = prompt.sampling.prompt_logprobs is not None
        sequence.cache_salt, sequence.pictures = prompt.sampling.cache_salt, prompt.pictures
        limit = min(core.scheduler.max_num_tokens, positions)
        answer = Answer(self.tokenizer, arrival, tokens, limit, lambda: core.step_end_s)
        request = RequestState(sequence, answer, core.model.ops, prompt.processors)
        core.admit(request)
        self._num_added += 1
        if self._run:
            self._run.started(request)

    def step(self) -> list[EngineOutput]:
        """Compute one step, in one forward pass and one evaluation; return what is new.

        All tokens of a step have the same time, the core's `step_end_s`. Each request that got a token has an
        output. If the request has ended it has left the engine, and its output has a completion. Returns []
        if there are no requests. If anything raises, all requests are dropped, as in `EngineCore.advance`.
        """
        return [request.output() for request in self.core.advance() if request.has_output]

    def abort(self, request_id: str) -> bool:
        """Drop a request in any state. Returns False if there is no such request."""
        return self.core.abort(request_id)

    def release(self) -> None:
        """Drop all requests and free the memory. You can't use the engine afterwards."""
        self.core.release()

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
        if self.has_requests:
            raise ValueError("the engine has requests already: step it until they end, or abort them")
        self._num_added = max(self._num_added, len(prompts))
        run = self._run = PromptRun(Arrivals(prompts, clock=self.core.options.clock), on_event)
        try:
            while run.arrivals or self.has_requests:
                run.start_arrived(self._start_arrival)
                run.publish(self.core.advance())
                if not self.has_requests:
                    run.arrivals.wait()
        finally:
            self._run = None
            self.core.abort_all()
        return run.completions()

    def _start_arrival(self, arrival: Arrival) -> Completion | None:
        num_tokens = 0
        try:
            tokens = prompt_token_ids(self.tokenizer, arrival.prompt.content, self.core.model.config)
            num_tokens = len(tokens)
            self._start(str(arrival.prompt_idx), arrival, tokens)
        except UserError as error:
            return arrival.refused(error, num_tokens)
        return None
