"""The engine: text and tokens in, text and events out, whatever else is served in the same steps."""

import time
from collections.abc import Sequence

from tiny_llm_lab.types import (
    Arrival,
    Arrivals,
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
    UserError,
    prompt_token_ids,
    require_room,
)

from ..generate.answer import Answer
from .core import EngineCore
from .request_state import RequestState
from .run import PromptRun
from .sequence import TokenSequence
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
        super().__init__(
            model,
            config,
            num_blocks=num_blocks,
            block_size=block_size,
            kv_bits=kv_bits,
            enable_prefix_caching=enable_prefix_caching,
            proposer=proposer,
            budget_controller=budget_controller,
            async_scheduling=async_scheduling,
            on_step=on_step,
            clock=clock,
        )
        self.tokenizer = tokenizer
        self._num_added = 0
        self._run: PromptRun | None = None  # of the call of `generate` that is under way

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
        tokens = prompt_token_ids(self.tokenizer, prompt, self.model.config)
        positions = self.model.config.max_position_embeddings
        require_room(len(tokens), positions, "the model's max_position_embeddings")
        arrival_s = self._clock() if arrival_s is None else arrival_s
        sequence = TokenSequence(request_id, tokens, priority, arrival_s, priority_class)
        answer = Answer(
            self.tokenizer,
            tokens,
            sampling,
            min(self.scheduler.max_num_tokens, positions),
            prompt_idx=self._num_added if prompt_idx is None else prompt_idx,
            arrival_s=arrival_s,
            clock=self._clock,
        )
        request = RequestState(sequence, answer, self.model.ops)
        self.admit(request)
        self._num_added += 1
        if self._run is not None:
            self._run.started(request)

    def step(self) -> list[EngineOutput]:
        """Plan a step, compute it in one forward pass and one evaluation, and return what is new.

        An output for each request that got a token; ended ones have a completion and are forgotten. Without
        requests nothing happens. When computing fails, all requests end, the blocks are laid out anew, and
        the error goes on.
        """
        return [request.output() for request in self.advance() if request.has_output]

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
        if self.has_requests:
            raise ValueError("the engine has requests already: step it until they end, or abort them")
        self._num_added = max(self._num_added, len(prompts))
        run = self._run = PromptRun(Arrivals(prompts, clock=self._clock), on_event)
        try:
            while run.arrivals or self.has_requests:
                run.start_arrived(self._add_arrival)
                run.publish(self.advance())
                if not self.has_requests:
                    run.arrivals.wait()
        finally:
            self._run = None
            self.abort_all()
        return run.completions()

    def _add_arrival(self, arrival: Arrival) -> Completion | None:
        prompt, request_id, num_tokens = arrival.prompt, str(arrival.prompt_idx), 0
        try:
            tokens = prompt_token_ids(self.tokenizer, prompt.content, self.model.config)
            num_tokens = len(tokens)
            self.add(
                request_id,
                tokens,
                prompt.sampling,
                priority=prompt.priority,
                priority_class=prompt.priority_class,
                arrival_s=arrival.arrival_s,
                prompt_idx=arrival.prompt_idx,
            )
        except UserError as error:
            return arrival.refused(error, num_tokens)
        return None
