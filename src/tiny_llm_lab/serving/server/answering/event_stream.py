"""An answer on its way: its choices, their token counts, and the events for a client that reads or leaves."""

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from json import dumps
from typing import Any, Final, Protocol, Self

from fastapi import Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from tiny_llm_lab.runtime.console.talk import plural
from tiny_llm_lab.runtime.structured.thoughts import Thoughts
from tiny_llm_lab.serving.server.answering.answers import Answers
from tiny_llm_lab.serving.server.api import as_api_error, is_anthropic, json_response, to_json
from tiny_llm_lab.serving.server.chat.conversation import PreparedChat
from tiny_llm_lab.serving.server.prompts.watch import WatchedPrompt
from tiny_llm_lab.types import EngineOutput

_SIGNS: Final = 6  # of life; each so many is an event
_LOG: Final = logging.getLogger("tiny_llm.server")
DONE: Final = b"data: [DONE]\n\n"
PING: Final = b": ping\n\n"
HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
# What /openapi.json says of a route that may answer with a stream.
STREAMED: Final[dict[int | str, dict[str, Any]]] = {200: {"content": {"text/event-stream": {}}}}


def event(data: object, name: str | None = None) -> bytes:
    """One event with `data` as JSON."""
    prefix = f"event: {name}\n".encode() if name else b""
    return prefix + b"data: " + to_json(data) + b"\n\n"


def error_event(error: bytes, path: str) -> bytes:
    """The last event of a stream of a route: an error as JSON, in the API's form."""
    return (b"event: error\n" if is_anthropic(path) else b"") + b"data: " + error + b"\n\n"


class EventStream(Response):
    """A response of events made from `answers`; they are closed when it ends, or when the client leaves."""

    media_type = "text/event-stream"

    def __init__(self, answers: Answers, events: AsyncIterator[bytes]) -> None:
        """`events` yields what is written at a time; b"" becomes a comment that keeps the connection alive.

        An error that it raises becomes the last event, in the route's format.
        """
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._answers, self._events = answers, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with _closed_with_client(receive, self._answers):
            try:
                async for written in self._events:
                    await _send(send, written or self._answers.sign())
            except Exception as error:
                told = as_api_error(error)
                if told is not error:
                    _LOG.exception("a stream failed")
                path = scope["path"]
                await _send(send, error_event(to_json(told.body(path)), path))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Reply(Protocol):
    """A route's output: one JSON document, or events while the answers grow. Has `usage`."""

    @property
    def usage(self) -> "Usage": ...

    def keep(self, idx: int, output: EngineOutput) -> None:
        """Add what is new of answer `idx`, for `whole`."""

    def whole(self) -> Mapping[str, Any]: ...
    def events(self, answers: Answers) -> AsyncIterator[bytes]: ...


class TypedReply(ABC):
    """The part that replies share whose events are objects with a type, made from each output."""

    def keep(self, idx: int, output: EngineOutput) -> None:
        """Add a step's output; nobody reads its events."""
        for _ in self.told(output):
            pass

    @abstractmethod
    def told(self, output: EngineOutput) -> Iterator[dict[str, Any]]:
        """The events of a step's output; must be read to its end."""


async def respond(request: Request, answers: Answers, reply: Reply, is_stream: bool) -> Response:
    """The response to an API request."""
    reply.usage.prompts = answers.prompts
    if is_stream:
        return EventStream(answers, reply.events(answers))
    await read_all(request, answers, reply.keep)
    return json_response(reply.whole())


async def read_all(request: Request, answers: Answers, keep: Callable[[int, EngineOutput], None]) -> None:
    """Pass all outputs to `keep`, those until the client leaves."""
    async with _closed_with_client(request.receive, answers):
        async for new in answers:
            for idx, output in new:
                keep(idx, output)


@contextlib.asynccontextmanager
async def _closed_with_client(receive: Receive, answers: Answers) -> AsyncIterator[None]:
    """Close `answers` at the end of the block, or when the client leaves: iterating over them ends then."""
    watch = asyncio.create_task(_close_when_gone(receive, answers))
    try:
        yield
    finally:
        watch.cancel()
        answers.close()


async def _close_when_gone(receive: Receive, answers: Answers) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    num_ended = answers.close()
    _LOG.info("499 the client left: %s ended", plural(num_ended, "request"))


async def _send(send: Callable[[dict[str, object]], Awaitable[None]] | Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


@dataclass
class Usage:
    """Counts tokens while outputs pass; a prompt with `n` choices counts once."""

    num_prompt_tokens: int
    n: int = 1
    has_answers: bool = True  # False: the client asked for no tokens; one was drawn and is left out
    thoughts: Thoughts | None = None  # of chats, whose usage says how many tokens they have
    num_picture_tokens: int = 0  # of the prompt
    num_completion_tokens: int = 0
    num_thought_tokens: int = 0  # of answers that have ended
    prompts: Sequence[WatchedPrompt] = ()
    _num_cached: dict[int, int] = field(default_factory=dict)  # by prompt

    @classmethod
    def of(cls, chat: PreparedChat, n: int = 1, thoughts: Thoughts | None = None) -> Self:
        """That of the answers to a chat."""
        return cls(len(chat.token_ids), n, thoughts=thoughts, num_picture_tokens=chat.num_picture_tokens)

    def count(self, idx: int, output: EngineOutput) -> None:
        """Add what is new for choice `idx`; the choices of a prompt follow each other."""
        self.num_completion_tokens += len(output.token_ids) if self.has_answers else 0
        if output.completion is not None and self.thoughts is not None:
            self.num_thought_tokens += self.thoughts.num_tokens(output.completion.token_ids)
        if idx % self.n == 0:
            self._num_cached[idx // self.n] = output.num_cached_tokens

    def as_dict(self) -> dict[str, Any]:
        """The `usage` of an answer; of a single prompt it says why it was computed."""
        details: dict[str, Any] = {"cached_tokens": sum(self._num_cached.values())}
        if len(self.prompts) == 1 and self.prompts[0].reuse is not None:
            details["prefix_cache"] = self.prompts[0].reuse.as_dict()
        if self.num_picture_tokens:
            details["image_tokens"] = self.num_picture_tokens
        thoughts = {"completion_tokens_details": {"reasoning_tokens": self.num_thought_tokens}}
        return (thoughts if self.thoughts else {}) | {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_completion_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_completion_tokens,
            "prompt_tokens_details": details,
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
        told: dict[int, Any] = {}
        num_signs = 0
        async for new in answers:
            chunks = []
            if not new and not answers.has_progress:
                num_signs += 1
                # Coding tools count no comments, and some leave after four minutes without an event.
                chunks += [] if num_signs % _SIGNS else [event({**head, "choices": [self._nothing(0)]})]
            for prompt, now in enumerate(each.progress() for each in answers.prompts if answers.has_progress):
                if told.get(prompt) != now:
                    told[prompt] = now
                    choices = [self._nothing(prompt * self.usage.n)]
                    chunks.append(event({**head, "choices": choices, "prompt_progress": now}))
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

    def _nothing(self, idx: int) -> dict[str, Any]:
        """What an event has of choice `idx` without anything new."""
        empty: dict[str, Any] = {"text": ""} if self.kind == self.chunk_kind else {"delta": {}}
        return {"index": idx, **empty, "finish_reason": None}
