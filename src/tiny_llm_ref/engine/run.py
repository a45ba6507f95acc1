"""Many prompts through one engine: prompts that have arrived go in, and each gets its completion."""

from collections.abc import Callable, Iterable

from tiny_llm_lab.types import Arrival, Arrivals, Completion, DoneEvent, Event, EventCallback, report_refused

from .request_state import RequestState


class PromptRun:
    """The prompts of one call of `Engine.generate`: those to come, those under way, those that ended."""

    def __init__(self, arrivals: Arrivals, on_event: EventCallback | None = None) -> None:
        """Sets arrivals: the prompts that have not been added to the engine."""
        self.arrivals = arrivals
        self._on_event = on_event
        self._num_prompts = len(arrivals)
        self._started: dict[int, RequestState] = {}
        self._completions: dict[int, Completion] = {}

    def start_arrived(self, add: Callable[[Arrival], Completion | None]) -> None:
        """Pass every prompt that has arrived to `add`, which returns a completion when it refuses one."""
        while (arrival := self.arrivals.pop()) is not None:
            if (added := add(arrival)) is not None:
                self._tell(DoneEvent(added))

    def started(self, request: RequestState) -> None:
        """From now on, publish events of a request that was added by this run or inside `on_event`."""
        self._started[request.answer.prompt_idx] = request

    def publish(self, served: Iterable[RequestState]) -> None:
        """Publish the events of the requests that a step served, then of those that were aborted."""
        for request in served:
            self._publish(request)
        # `on_event` may abort requests, also those that it has just added.
        while ended := [each for each in self._started.values() if each.answer.is_done]:
            for request in ended:
                self._publish(request)

    def completions(self) -> list[Completion]:
        """The completions of the run, in prompt order; without `on_event`, refused prompts are reported."""
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
            # A request that `on_event` added has a number of its own, and only its events.
            if prompt_idx < self._num_prompts:
                self._completions[prompt_idx] = event.completion
        if self._on_event is not None:
            self._on_event(event)
