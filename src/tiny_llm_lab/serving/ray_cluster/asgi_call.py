"""One HTTP request to an ASGI application in this process, its answer in pieces as they come."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp, Message

_GRACE_S: Final = 5.0


@dataclass(frozen=True)
class HttpRequest:
    """A request that was read to its end; `prefix_key` is for whoever chooses a replica."""

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    client: tuple[str, int] | None = None
    prefix_key: str | None = None


@dataclass(frozen=True)
class ResponseHead:
    """What an answer begins with."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]


async def call_app(app: ASGIApp, request: HttpRequest) -> AsyncGenerator[ResponseHead | bytes, None]:
    """Yields the head of the answer, then its body; pieces that wait are joined.

    Left early, it tells the application that the client has gone, and waits until it has ended.
    """
    call = _Call(request)
    task = asyncio.create_task(call.run(app))
    try:
        while (piece := await call.next_piece()) is not None:
            yield piece
        await task  # raises what the application raised
    finally:
        call.has_left.set()
        if not task.done():
            await asyncio.wait({task}, timeout=_GRACE_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _Call:
    """The two ends of a request: what the application calls, and what it has sent."""

    def __init__(self, request: HttpRequest) -> None:
        self.has_left = asyncio.Event()
        self._request = request
        self._is_read = False
        self._head: ResponseHead | None = None
        self._body = bytearray()
        self._is_over = False
        self._changed = asyncio.Event()

    async def run(self, app: ASGIApp) -> None:
        request = self._request
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "http",
            "method": request.method,
            "path": request.path,
            "raw_path": request.path.encode(),
            "root_path": "",
            "query_string": request.query,
            "headers": list(request.headers),
            "client": request.client,
            "server": None,
        }
        try:
            await app(scope, self._receive, self._send)
        finally:
            self._is_over = True
            self._changed.set()

    async def next_piece(self) -> ResponseHead | bytes | None:
        """What the application has sent since the last call; None at the end."""
        while self._head is None and not self._body and not self._is_over:
            self._changed.clear()
            await self._changed.wait()
        if self._head is not None:
            head, self._head = self._head, None
            return head
        piece = bytes(self._body)
        self._body.clear()
        return piece or None

    async def _receive(self) -> Message:
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = ResponseHead(message["status"], tuple(message["headers"]))
        else:
            self._body += message.get("body", b"")
            self._is_over = not message.get("more_body", False)
        self._changed.set()
