"""The stream of a request whose model is being loaded."""

import asyncio
import contextlib
from typing import Final, Self

from starlette.types import Message, Send

from tiny_llm_lab.serving.server.answering.event_stream import HEADERS, PING, error_event

_HEAD: Final = {"content-type": "text/event-stream; charset=utf-8", **HEADERS}
_START: Final = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(name.lower().encode(), value.encode()) for name, value in _HEAD.items()],
}


class LoadingStream:
    """Sends comments until the application answers. If that is an error, it becomes the last event."""

    def __init__(self, send: Send, path: str, keep_alive_s: float) -> None:
        self._send, self._path, self._keep_alive_s = send, path, keep_alive_s
        self._has_begun = False  # with a head of ours
        self._is_error = False
        self._kept: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._kept = asyncio.create_task(self._keep_alive())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._answered()

    async def send(self, message: Message) -> None:
        """What the application sends with."""
        await self._answered()
        if not self._has_begun:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._is_error = message["status"] != 200
        elif self._is_error:
            await self._send({**message, "body": error_event(message["body"], self._path)})
        else:
            await self._send(message)

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._keep_alive_s)
            if not self._has_begun:
                self._has_begun = True
                await self._send(_START)
            await self._send({"type": "http.response.body", "body": PING, "more_body": True})

    async def _answered(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await kept
