"""The events of an engine, for whoever listens: metrics, the live page, a log."""

from collections.abc import Sequence
from dataclasses import dataclass

from tiny_llm_lab.serving.async_engine.messages import EngineFacts, Queues, StepReport
from tiny_llm_lab.types import EngineOutput, SamplingParams, SchedulerConfig


@dataclass(frozen=True)
class AddedRequest:
    """A request that the engine has accepted."""

    request_id: str
    num_prompt_tokens: int
    sampling: SamplingParams
    arrival_s: float  # on time.perf_counter, like all times of the engine


class EngineListener:
    """A base class that ignores every event.

    Called on the event loop, in the order in which it happened: must be quick, and must not raise.
    """

    def started(self, facts: EngineFacts) -> None:
        """The engine is ready: for the first time, or again after it had died."""

    def configured(self, config: SchedulerConfig) -> None:
        """The engine schedules by `config` from now on."""

    def added(self, request: AddedRequest, queues: Queues) -> None: ...

    def stepped(self, report: StepReport) -> None:
        """A step was computed; its outputs come next."""

    def produced(self, outputs: Sequence[EngineOutput]) -> None:
        """The last step's output for each request that got a token."""

    def aborted(self, request_id: str, queues: Queues) -> None:
        """A request left the engine before its end, because its client has gone."""

    def failed(self, request_id: str, queues: Queues) -> None:
        """A step failed, or the engine has stopped: as `aborted`, where it makes no difference."""
        self.aborted(request_id, queues)
