"""Events on their way to one page: ten batches a second at most, and an end for a page that stalls."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from fastapi.responses import StreamingResponse
from starlette.types import Message, Send

from tiny_llm_lab.serving.server.answering.event_stream import PING, event
from tiny_llm_lab.serving.server.live.recorder import StepRecorder

BATCH_S: Final = 0.1
PING_S: Final = 15.0
STALL_S: Final = 10.0


class PageStream(StreamingResponse):
    """Server-sent events for a page. Drops a page that takes nothing for `stall_s`."""

    media_type = "text/event-stream"

    def __init__(self, batches: AsyncIterator[bytes], stall_s: float = STALL_S) -> None:
        super().__init__(batches, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._stall_s = stall_s

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
        is_last = not is_open()  # what happened before the end is still sent
        await asyncio.sleep(0 if is_last else batch_s)
        events, position = recorder.since(position)
        if events:
            yield event(events)
        elif time.monotonic() - sent_s > ping_s:
            yield PING  # or a client that has gone would go unnoticed
        else:
            continue
        sent_s = time.monotonic()
