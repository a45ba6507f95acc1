"""Many prompts on one engine: prompts that have arrived are added, and each gets its completion."""

from collections.abc import Callable, Iterable

from tiny_llm_lab.types import Arrival, Arrivals, Completion, DoneEvent, Event, EventCallback, report_refused

from .request_state import RequestState


class PromptRun:
    """The prompts of one call of `Engine.generate`: waiting to arrive, in the engine, or ended."""

    def __init__(self, arrivals: Arrivals, on_event: EventCallback | None = None) -> None:
        """Sets arrivals, the prompts that have not been added to the engine."""
        self.arrivals = arrivals
        self._on_event = on_event
        self._num_prompts = len(arrivals)
        self._started: dict[int, RequestState] = {}
        self._completions: dict[int, Completion] = {}

    def start_arrived(self, add: Callable[[Arrival], Completion | None]) -> None:
        """Pass each prompt that has arrived to `add`, which returns a completion if it refuses the prompt."""
        while (arrival := self.arrivals.pop()) is not None:
            if (added := add(arrival)) is not None:
                self._tell(DoneEvent(added))

    def started(self, request: RequestState) -> None:
        """Start to publish the events of a request that this run or `on_event` has added."""
        self._started[request.answer.prompt_idx] = request

    def publish(self, served: Iterable[RequestState]) -> None:
        """Publish the events of the requests that a step served, then of requests that were aborted."""
        for request in served:
            self._publish(request)
        # `on_event` may abort requests, including requests that it has just added.
        while ended := [each for each in self._started.values() if each.answer.is_done]:
            for request in ended:
                self._publish(request)

    def completions(self) -> list[Completion]:
        """Returns the run's completions, in prompt order. Without `on_event` it reports refused prompts."""
        done = [self._completions[i] for i in sorted(self._completions)]
        if self._on_event is None:
            report_refused(done)
        return done

    def _publish(self, request: RequestState) -> None:
        for event in request.answer.take_events():
            self._tell(event)

    def _tell(self, event: Event) -> None:
        if isinstance(event, DoneEvent):
            prompt_idx = event.completion.prompt_idx
            self._started.pop(prompt_idx, None)
            # A request that `on_event` added has a higher number and only gets events, no completion.
            if prompt_idx < self._num_prompts:
                self._completions[prompt_idx] = event.completion
        if self._on_event is not None:
            self._on_event(event)
