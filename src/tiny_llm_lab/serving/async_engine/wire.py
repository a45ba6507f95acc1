"""Messages between the processes of one server, over a pair of sockets that only they have.

They are pickled: both ends run the same code, and nobody else can write to the sockets.
"""

import contextlib
import pickle
import queue
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tiny_llm_lab.serving.async_engine.messages import Command

_SIZE: Final = struct.Struct("!Q")
_BUFFER_BYTES: Final = 2**20
_READ_BYTES: Final = 2**16


def packed(message: object) -> bytes:
    """A message as it is sent. An exception that cannot be pickled must be made `portable` before."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _SIZE.pack(len(body)) + body


def portable(error: BaseException) -> BaseException:
    """`error`, or one that says the same if it could not be read by another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


class Unpacker:
    """Makes messages of bytes that come in pieces."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, piece: bytes) -> Iterator[Any]:
        """The messages that end in `piece`; must be read to the end."""
        self._bytes += piece
        start = 0
        while len(self._bytes) >= start + _SIZE.size:
            (size,) = _SIZE.unpack_from(self._bytes, start)
            end = start + _SIZE.size + size
            if len(self._bytes) < end:
                break
            yield pickle.loads(memoryview(self._bytes)[start + _SIZE.size : end].toreadonly())
            start = end
        del self._bytes[:start]


class Wire:
    """One end of a pair of sockets, for threads. One may send while another receives."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        self._sock = sock
        self._unpacker = Unpacker()
        self._received: deque[Any] = deque()
        self._waiting: deque[bytes] = deque()  # of what the socket had no room for
        self._changed = threading.Condition()
        threading.Thread(target=self._write_waiting, name="wire", daemon=True).start()

    def send(self, message: object) -> None:
        """Send without waiting for the reader. After the other end has closed, nothing happens."""
        data = packed(message)
        with self._changed:
            if not self._waiting:
                data = data[self._written(data) :]
            if data:
                self._waiting.append(data)
                self._changed.notify()

    def receive(self) -> Any:
        """The next message. Raises EOFError when the other end has closed."""
        while not self._received:
            try:
                piece = self._sock.recv(_READ_BYTES)
            except OSError:
                piece = b""
            if not piece:
                raise EOFError
            self._received.extend(self._unpacker.add(piece))
        return self._received.popleft()

    def flush(self) -> None:
        """Wait until everything is sent, or the other end has closed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)

    def _written(self, data: bytes) -> int:
        if sys.platform == "darwin":
            return 0  # there a full socket lets its sender wait, whatever the flag
        try:
            return self._sock.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:  # the other end has closed
            return len(data)

    def _write_waiting(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                data = self._waiting[0]
            with contextlib.suppress(OSError):  # the other end has closed
                self._sock.sendall(data)
            with self._changed:
                self._waiting.popleft()
                self._changed.notify_all()


class Inbox:
    """Commands from any thread."""

    is_shared = False  # whether other ranks do the same before the same step
    leads = True  # whether this rank says what they do

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Command] = queue.SimpleQueue()

    def put(self, command: Command) -> None:
        """Add a command."""
        self._queue.put(command)

    def take(self, waits: bool, timeout_s: float | None) -> Sequence[Command]:
        """All commands so far. If it `waits`, the first one may take `timeout_s` (None: any time) to come."""
        results = []
        try:
            if waits:
                results.append(self._queue.get(timeout=timeout_s))
            while True:
                results.append(self._queue.get_nowait())
        except queue.Empty:
            return results


class LeadingInbox(Inbox):
    """Of rank 0, which tells the others what it takes: they take as much at the same step."""

    is_shared = True

    def __init__(self, followers: Sequence[Wire]) -> None:
        super().__init__()
        self._followers = followers

    def take(self, waits: bool, timeout_s: float | None) -> Sequence[Command]:
        result = super().take(waits, timeout_s)
        for each in self._followers:
            each.send(result)
        return result


class FollowingInbox(Inbox):
    """Of another rank."""

    is_shared = True
    leads = False

    def __init__(self, leader: Wire) -> None:
        super().__init__()
        self._leader = leader

    def put(self, command: Command) -> None:
        """Rank 0 says it to all."""

    def take(self, waits: bool, timeout_s: float | None) -> Sequence[Command]:
        """What rank 0 took. Raises EOFError when it is gone."""
        result: Sequence[Command] = self._leader.receive()
        return result
