"""A stream that begins before its model is loaded."""

import asyncio
import contextlib
from typing import Final, Self

from starlette.types import Message, Send

from tiny_llm_lab.serving.server.answering.event_stream import HEADERS, PING, event
from tiny_llm_lab.serving.server.errors import ApiError, is_anthropic

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

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        await self._answered()
        if not self._has_begun or not isinstance(error, ApiError):
            return False
        await self._tell(error)
        return True

    async def send(self, message: Message) -> None:
        """What the application sends with."""
        await self._answered()
        if not self._has_begun:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._is_error = message["status"] != 200
        elif self._is_error:
            name = "error" if is_anthropic(self._path) else None
            prefix = f"event: {name}\n".encode() if name else b""
            await self._send({**message, "body": prefix + b"data: " + message["body"] + b"\n\n"})
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

    async def _tell(self, error: ApiError) -> None:
        body = event(error.body(self._path), "error" if is_anthropic(self._path) else None)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
