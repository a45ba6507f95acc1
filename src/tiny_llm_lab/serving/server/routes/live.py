"""`/live/events` and `/live/config`: what the page at `/` watches and changes."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field, StrictBool, StrictInt
from starlette.types import Message, Receive, Scope, Send

from tiny_llm_lab.runtime.models.greeting import greeting
from tiny_llm_lab.serving.server.answering.event_stream import PING, event
from tiny_llm_lab.serving.server.api import ApiError, Served, ServedModel
from tiny_llm_lab.serving.server.live.recorder import StepRecorder, changeable

BATCH_S: Final = 0.1
MAX_PAGES: Final = 32
PING_S: Final = 15.0
STALL_S: Final = 10.0


class Pages:
    """How many pages watch at a time: each takes time from those who wait for tokens."""

    def __init__(self, most: int = MAX_PAGES) -> None:
        self._num_open, self._most = 0, most

    @contextmanager
    def opened(self) -> Iterator[None]:
        """One page more for the time of the block. Raises ApiError 503 if there are too many."""
        if self._num_open >= self._most:
            message = f"{self._num_open} pages watch this server, and it takes no more: close one"
            raise ApiError(503, message, code="too_many_pages", headers={"Retry-After": "5"})
        self._num_open += 1
        try:
            yield
        finally:
            self._num_open -= 1


class PageStream(StreamingResponse):
    """Server-sent events for a page. Drops a page that reads nothing for `stall_s`."""

    media_type = "text/event-stream"

    def __init__(self, batches: AsyncIterator[bytes], pages: Pages, stall_s: float = STALL_S) -> None:
        super().__init__(batches, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._pages, self._stall_s = pages, stall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._pages.opened():
            await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            await asyncio.wait_for(send(message), self._stall_s)

        try:
            await super().stream_response(send_in_time)
        except TimeoutError:
            return  # the server closes a connection whose response has no end


async def batches(
    recorder: StepRecorder,
    hello: dict[str, Any],
    is_open: Callable[[], bool],
    batch_s: float = BATCH_S,
    ping_s: float = PING_S,
) -> AsyncIterator[bytes]:
    """`hello` and the engine's state, then what happens until `is_open` is false; each a JSON list of events.

    A page that reads slowly skips what has left the ring by then.
    """
    state, position = recorder.snapshot()
    yield event([{"type": "hello"} | hello, *state])
    sent_s = time.monotonic()
    is_last = False
    while not is_last:
        is_last = not is_open()  # events before the end are still sent
        await asyncio.sleep(0 if is_last else batch_s)
        events, position = recorder.since(position)
        if events:
            yield event(events)
        elif time.monotonic() - sent_s > ping_s:
            yield PING  # or we would not notice that a client has gone
        else:
            continue
        sent_s = time.monotonic()


LONG_PROMPT_TOKENS: Final = 3000
MIN_BUDGET: Final = 64
MAX_BUDGET: Final = 65_536

router = APIRouter(prefix="/live")


class ConfigChange(BaseModel, extra="forbid"):
    """The settings that a page may change; a missing field stays as it is."""

    enable_chunked_prefill: StrictBool | None = None
    max_num_batched_tokens: Annotated[StrictInt, Field(ge=1, le=MAX_BUDGET)] | None = None


@router.get("/events", response_class=PageStream, status_code=200)
async def events(served: Served, request: Request) -> PageStream:
    """The engine's steps as server-sent events, each a JSON list of the events in 0.1 s."""
    told = batches(served.live.recorder, _hello(served), lambda: served.engine.is_ready)
    return PageStream(told, request.app.state.pages)


@router.post("/config")
async def configure(change: ConfigChange, served: Served) -> dict[str, object]:
    """Switch chunked prefill or set a step's token budget, starting with the next step."""
    if not served.live.has_controls:
        raise ApiError(403, "the page's controls are off: start the server with --enable-live-controls")
    config = await served.live.controls.apply(
        served.engine, change.enable_chunked_prefill, change.max_num_batched_tokens
    )
    return changeable(config)


def _hello(served: ServedModel) -> dict[str, Any]:
    """What a page needs to know before the first step."""
    facts = served.facts
    longest = facts.config.max_model_len
    return {
        "model": served.names[0],
        "greeting": greeting(served.names)._asdict(),
        "has_controls": served.live.has_controls,
        "max_model_len": longest,
        "min_budget": max(MIN_BUDGET, facts.config.max_num_seqs),
        "long_prompt_tokens": min(LONG_PROMPT_TOKENS, longest * 3 // 4),
        "vocab_size": facts.model.vocab_size,
        "num_blocks": facts.num_blocks,
        "block_size": facts.block_size,
    }
