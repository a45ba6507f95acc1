"""HTTP/1.1 by httptools, which parses and frames in C, with limits to the head of a request."""

import asyncio
from typing import Any, Final

from starlette.types import Message, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tiny_llm_lab.serving.server.errors import ApiError, to_json

_HEAD_BYTES: Final = 64 * 2**10


def _without_chunks(cycle: RequestResponseCycle) -> Send:
    """`cycle.send` for a client that knows no chunks: a body of unknown length ends with the connection."""
    send, has_length = cycle.send, False

    async def send_plain(message: Message) -> None:
        nonlocal has_length
        if message["type"] == "http.response.start":
            has_length = any(name.lower() == b"content-length" for name, _ in message["headers"])
            cycle.chunked_encoding = None if has_length else False
        elif not has_length:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)  # type: ignore[arg-type]

    return send_plain


class HttpProtocol(HttpToolsProtocol):
    """Uvicorn's protocol without chunks for HTTP/1.0, and with two limits, one of size and one of time.

    A connection that sends more than 64 KiB without a body, or the end of a request, is answered with 400 and
    closed: that bounds heads, trailers and extensions of chunks. One whose next request has no complete head
    `head_timeout_s` after the last answer is closed: uvicorn has no limit once the first byte has come, and
    none for the first request of a connection.
    """

    head_timeout_s = 30.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.url = b""
        self._num_bytes = 0  # since the last piece of a body or the end of the last request
        self._has_head = False  # a request whose answer has not ended
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse `data`, which may end anywhere in a request."""
        self._num_bytes += len(data)
        super().data_received(data)
        if self._num_bytes > _HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large: send less than 64 KiB.")

    def on_headers_complete(self) -> None:
        """A head is complete."""
        self._has_head = True
        super().on_headers_complete()
        if self.scope["http_version"] < "1.1":
            self.cycle.send = _without_chunks(self.cycle)  # type: ignore[assignment, method-assign]

    def send_400_response(self, msg: str) -> None:
        """Answer what is not a request that a route could see, in the form of its API's errors."""
        error = ApiError(
            400, f"{msg} Send a request of HTTP/1.1, and close the connection after this answer."
        )
        body = to_json(error.body(self.url.decode("latin-1")))
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head.encode() + body)
        self.transport.close()

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._num_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of a request."""
        self._num_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The end of an answer."""
        if not self.transport.is_closing():
            self._wait_for_head()
        super().on_response_complete()

    def _wait_for_head(self) -> None:
        self._cancel()
        self._has_head = bool(self.pipeline)  # requests that the client sent ahead
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._close_without_head)

    def _cancel(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()

    def _close_without_head(self) -> None:
        if not self._has_head and not self.transport.is_closing():
            self.transport.close()
