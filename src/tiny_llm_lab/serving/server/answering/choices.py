"""The answer to a completion: its choices, whole or as chunks of a stream, and their token counts."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from json import dumps
from typing import Any, Protocol

from tiny_llm_lab.serving.server.answering.answers import Answers
from tiny_llm_lab.serving.server.answering.event_stream import DONE, event
from tiny_llm_lab.serving.server.errors import to_json
from tiny_llm_lab.types import EngineOutput


@dataclass
class Usage:
    """Counts tokens while outputs pass; a prompt with `n` choices counts once."""

    num_prompt_tokens: int
    n: int = 1
    has_answers: bool = True  # False: the client asked for no tokens; one was drawn and is left out
    num_completion_tokens: int = 0
    _num_cached: dict[int, int] = field(default_factory=dict)  # by prompt

    def count(self, idx: int, output: EngineOutput) -> None:
        """Add what is new for choice `idx`; the choices of a prompt follow each other."""
        self.num_completion_tokens += len(output.token_ids) if self.has_answers else 0
        if idx % self.n == 0:
            self._num_cached[idx // self.n] = output.num_cached_tokens

    def as_dict(self) -> dict[str, Any]:
        """The `usage` of an answer."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_completion_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._num_cached.values())},
        }


class Choice(Protocol):
    """What one choice has so far."""

    def keep(self, output: EngineOutput) -> object:
        """Add a step's output, for `whole`."""

    def whole(self, idx: int) -> dict[str, Any]:
        """The choice in an answer that is not streamed."""

    def chunk(self, idx: int, output: EngineOutput) -> bytes | None:
        """The choice in an event; None if it would be empty."""


@dataclass(frozen=True)
class Choices:
    """The `Reply` of the completion routes."""

    head: Mapping[str, Any]
    choices: Sequence[Choice]
    usage: Usage
    kind: str
    chunk_kind: str  # "object" of the answer, and of the events of a stream
    include_usage: bool  # at the end of a stream
    has_running_usage: bool = False  # in each event as well

    def keep(self, idx: int, output: EngineOutput) -> None:
        """Add what is new of choice `idx`."""
        self.usage.count(idx, output)
        self.choices[idx].keep(output)

    def whole(self) -> dict[str, Any]:
        """The answer as one JSON document."""
        choices = [each.whole(idx) for idx, each in enumerate(self.choices)]
        return {**self.head, "object": self.kind, "choices": choices, "usage": self.usage.as_dict()}

    async def events(self, answers: Answers) -> AsyncIterator[bytes]:
        """What is written at a time."""
        # We build a chunk as text; with pydantic or a dictionary it would take several times as long.
        head = {**self.head, "object": self.chunk_kind}
        start = f'data: {dumps(head)[:-1]}, "choices": ['.encode()
        end = b'], "usage": null}\n\n' if self.include_usage else b"]}\n\n"
        async for new in answers:
            chunks = []
            for idx, output in new:
                self.usage.count(idx, output)
                if (chunk := self.choices[idx].chunk(idx, output)) is not None:
                    if self.has_running_usage:
                        end = b'], "usage": ' + to_json(self.usage.as_dict()) + b"}\n\n"
                    chunks += [start, chunk, end]
            if chunks or not new:
                yield b"".join(chunks)
        if self.include_usage:
            yield event({**head, "choices": [], "usage": self.usage.as_dict()})
        yield DONE
