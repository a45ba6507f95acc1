"""A server of completions whose answers are scripts: pauses, and bytes to send."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

Step = float | bytes  # wait so many seconds, or send


def sse(event: Mapping[str, Any]) -> bytes:
    """One event."""
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def text_chunk(text: str, finish_reason: str | None = None) -> bytes:
    """An event of a completion."""
    return sse({"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]})


def chat_chunk(delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
    """An event of a chat."""
    return sse({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def usage_chunk(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None) -> bytes:
    """The event before the end that counts tokens."""
    usage: dict[str, Any] = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    if cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    return sse({"choices": [], "usage": usage})


DONE = b"data: [DONE]\n\n"


def steady(num_tokens: int, ttft_s: float, itl_s: float, num_prompt_tokens: int = 5) -> list[Step]:
    """An answer of one token a chunk: the first after `ttft_s`, the others `itl_s` apart, and usage."""
    steps: list[Step] = [ttft_s]
    for number in range(num_tokens):
        last = number == num_tokens - 1
        steps += [text_chunk(f" t{number}", "length" if last else None), *([] if last else [itl_s])]
    return [*steps, usage_chunk(num_prompt_tokens, num_tokens), DONE]


@dataclass
class _Script(httpx2.AsyncByteStream):
    steps: Sequence[Step]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for step in self.steps:
            if isinstance(step, bytes):
                yield step
            else:
                await asyncio.sleep(step)


class FakeOpenAI(httpx2.AsyncBaseTransport):
    """Answers a POST with the script of its number; notes bodies, headers, and how many ran at a time."""

    def __init__(self, script: Callable[[int], Sequence[Step]], status: int = 200) -> None:
        self._script, self._status = script, status
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.paths: list[str] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.paths.append(request.url.path)
        if request.method == "GET":
            return httpx2.Response(200, json={"data": [{"id": "fake"}]})
        self.bodies.append(json.loads(await request.aread()))
        self.headers.append(request.headers)
        return httpx2.Response(self._status, stream=_Script(self._script(len(self.bodies) - 1)))
