"""The events of an engine, for whoever listens: metrics, the live page, a log."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tiny_llm_lab.runtime.models.text.tokenizer import CheckpointTokenizer
from tiny_llm_lab.serving.async_engine.messages import Command, EngineEvent, EngineFacts, Queues, StepReport
from tiny_llm_lab.serving.async_engine.texts import EngineText
from tiny_llm_lab.types import EngineOutput, SamplingParams, SchedulerConfig


class EventSink(Protocol):
    """Where events go; called on the event loop that has called `EngineLink.start`."""

    def receive(self, events: Sequence[EngineEvent]) -> None:
        """In the order in which they happened."""

    def ended(self) -> None:
        """No more events come: the engine has stopped or died."""


class EngineLink(Protocol):
    """An engine that can be told what to do."""

    can_restart: bool  # whether `start` may be called again when the engine has ended

    async def start(self, sink: EventSink) -> None:
        """Begin to build the engine; its first event says how that went."""

    def send(self, command: Command) -> None:
        """Give a command; nothing happens if the engine has ended."""

    async def stop(self) -> None:
        """Compute no further step, and wait until the engine's memory is given back."""

    async def tokenizer(self) -> CheckpointTokenizer:
        """The model's, once the engine is ready."""

    def text_of(self, sampling: SamplingParams) -> EngineText:
        """Who makes the text of a new request, after `tokenizer`."""


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
