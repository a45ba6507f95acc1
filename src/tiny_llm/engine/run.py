"""Many prompts through one engine: prompts that have arrived go in, and each gets its completion."""

from collections.abc import Callable, Iterable

from tiny_llm_lab.types import Arrival, Arrivals, Completion, EventCallback

from .request_state import RequestState


class PromptRun:
    """The prompts of one call of `Engine.generate`: those to come, those under way, those that ended."""

    def __init__(self, arrivals: Arrivals, on_event: EventCallback | None = None) -> None:
        """Sets arrivals: the prompts that have not been added to the engine."""
        raise NotImplementedError("task 3.6.6")

    def start_arrived(self, add: Callable[[Arrival], Completion | None]) -> None:
        """Pass every prompt that has arrived to `add`, which returns a completion when it refuses one."""
        raise NotImplementedError("task 3.6.6")

    def started(self, request: RequestState) -> None:
        """From now on, publish events of a request that was added by this run or inside `on_event`."""
        raise NotImplementedError("task 3.6.6")

    def publish(self, served: Iterable[RequestState]) -> None:
        """Publish the events of the requests that a step served, then of those that were aborted."""
        raise NotImplementedError("task 3.6.6")

    def completions(self) -> list[Completion]:
        """The completions of the run, in prompt order; without `on_event`, refused prompts are reported."""
        raise NotImplementedError("task 3.6.6")
