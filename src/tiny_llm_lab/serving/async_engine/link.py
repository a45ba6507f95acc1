"""The way to an engine and back, wherever it runs."""

from collections.abc import Sequence
from typing import Protocol

from tiny_llm_lab.runtime.models.text.tokenizer import CheckpointTokenizer
from tiny_llm_lab.serving.async_engine.messages import Command, EngineEvent


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
