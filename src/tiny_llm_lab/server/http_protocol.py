"""HTTP/1.1 by httptools, which parses and frames in C."""

from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD_BYTES: Final = 64 * 2**10


class HttpProtocol(HttpToolsProtocol):
    """Uvicorn's protocol with a limit: a connection that sends more than 64 KiB without a body, or the end of
    a request, is answered with 400 and closed. That bounds heads, trailers and extensions of chunks.
    """

    _num_bytes = 0  # since the last piece of a body, or the last end of a request

    def data_received(self, data: bytes) -> None:
        """Parse `data`, which may end anywhere in a request."""
        self._num_bytes += len(data)
        super().data_received(data)
        if self._num_bytes > _HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._num_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of a request."""
        self._num_bytes = 0
        super().on_message_complete()
