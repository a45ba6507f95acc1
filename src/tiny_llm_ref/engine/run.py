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

    def start_arrived(self, add: Callable[[Arrival], RequestState | Completion]) -> None:
        """Pass every prompt that has arrived to `add`, which returns a completion when it refuses one."""
        while (arrival := self.arrivals.pop()) is not None:
            added = add(arrival)
            if isinstance(added, Completion):
                self._tell(DoneEvent(added))
            else:
                self._started[arrival.prompt_idx] = added

    def publish(self, served: Iterable[RequestState]) -> None:
        """Hand on the events of the requests that a step served, then of those that were aborted."""
        for request in (*served, *self._started.values()):
            for event in request.answer.take_events():
                self._tell(event)

    def completions(self) -> list[Completion]:
        """The completions of the run, in prompt order; without `on_event`, refused prompts are reported."""
        done = [self._completions[i] for i in sorted(self._completions)]
        if self._on_event is None:
            report_refused(done)
        return done

    def _tell(self, event: Event) -> None:
        if isinstance(event, DoneEvent):
            prompt_idx = event.completion.prompt_idx
            self._started.pop(prompt_idx, None)
            # A request that `on_event` added has a number of its own, and only its events.
            if prompt_idx < self._num_prompts:
                self._completions[prompt_idx] = event.completion
        if self._on_event is not None:
            self._on_event(event)
