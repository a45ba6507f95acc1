"""Events on their way to one page: ten batches a second at most, and an end for a page that stalls."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from fastapi.responses import StreamingResponse
from starlette.types import Message, Send

from .recorder import Event, StepRecorder

BATCH_S: Final = 0.1
KEEP_ALIVE_S: Final = 15.0
STALL_S: Final = 10.0


class EventStream(StreamingResponse):
    """A server-sent event stream. Closes the connection of a client that takes nothing for `stall_s`."""

    def __init__(self, batches: AsyncIterator[str], stall_s: float = STALL_S) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(batches, media_type="text/event-stream", headers=headers)
        self._stall_s = stall_s

    async def stream_response(self, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            await asyncio.wait_for(send(message), self._stall_s)

        try:
            await super().stream_response(send_in_time)
        except TimeoutError:
            return  # the server closes a connection whose response has no end


async def batches(
    recorder: StepRecorder, hello: dict[str, Any], is_open: Callable[[], bool], batch_s: float = BATCH_S
) -> AsyncIterator[str]:
    """`hello` and the engine's state, then what happens until `is_open` is false.

    A page that reads slowly skips what has left the ring by then.
    """
    state, position = recorder.snapshot()
    yield _message([{"type": "hello"} | hello, *state])
    sent_s = time.monotonic()
    while is_open():
        await asyncio.sleep(batch_s)
        events, position = recorder.since(position)
        if events:
            yield _message(events)
        elif time.monotonic() - sent_s > KEEP_ALIVE_S:
            yield ": keep-alive\n\n"  # or a client that has gone would go unnoticed
        else:
            continue
        sent_s = time.monotonic()


def _message(events: list[Event]) -> str:
    return f"data: {json.dumps(events, separators=(',', ':'))}\n\n"
