"""Many prompts on one engine: prompts that have arrived are added, and each gets its completion."""

from collections.abc import Callable, Iterable

from tiny_llm_lab.types import Arrival, Arrivals, Completion, EventCallback

from .request_state import RequestState


class PromptRun:
    """The prompts of one call of `Engine.generate`: waiting to arrive, in the engine, or ended."""

    def __init__(self, arrivals: Arrivals, on_event: EventCallback | None = None) -> None:
        """Sets arrivals, the prompts that have not been added to the engine."""
        raise NotImplementedError("task 3.6.6")

    def start_arrived(self, add: Callable[[Arrival], Completion | None]) -> None:
        """Pass each prompt that has arrived to `add`, which returns a completion if it refuses the prompt."""
        raise NotImplementedError("task 3.6.6")

    def started(self, request: RequestState) -> None:
        """Start to publish the events of a request that this run or `on_event` has added."""
        raise NotImplementedError("task 3.6.6")

    def publish(self, served: Iterable[RequestState]) -> None:
        """Publish the events of the requests that a step served, then of requests that were aborted."""
        raise NotImplementedError("task 3.6.6")

    def completions(self) -> list[Completion]:
        """Returns the run's completions, in prompt order. Without `on_event` it reports refused prompts."""
        raise NotImplementedError("task 3.6.6")
