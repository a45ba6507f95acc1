"""Server-sent events, from bytes as they arrive."""

from collections.abc import Iterable, Iterator
from typing import Final

from tiny_llm_lab.types import UserError

# A chunk of an answer has some hundred bytes; its log probabilities add some thousand.
MAX_EVENT_BYTES: Final = 4 * 2**20
DONE: Final = b"[DONE]"


def events_of(received: Iterable[bytes]) -> Iterator[bytes]:
    """The data of every event of a stream but the last one, [DONE]."""
    parser = EventParser()
    for each in received:
        yield from (data for data in parser.feed(each) if data.strip() != DONE)
    yield from (data for data in parser.close() if data.strip() != DONE)


class EventParser:
    """Turns bytes into the `data` of events; comments and other fields are left out.

    Lines end with LF or CRLF and may come in any number of pieces.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._num_bytes = 0

    def feed(self, received: bytes) -> Iterator[bytes]:
        """The data of every event that `received` completes; UserError for one that never ends."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        for line in lines:
            yield from self._line(line.removesuffix(b"\r"))
        if self._num_bytes + len(self._rest) > MAX_EVENT_BYTES:
            raise UserError(f"the server sent an event of more than {MAX_EVENT_BYTES // 2**20} MB")

    def close(self) -> Iterator[bytes]:
        """The data of an event that the end of the stream cut off: some servers end without a blank line."""
        yield from self._line(self._rest)
        yield from self._line(b"")
        self._rest = b""

    def _line(self, line: bytes) -> Iterator[bytes]:
        if line.startswith(b"data:"):
            data = line[5:].removeprefix(b" ")
            self._data.append(data)
            self._num_bytes += len(data)
        elif not line and self._data:
            yield b"\n".join(self._data)
            self._data, self._num_bytes = [], 0
