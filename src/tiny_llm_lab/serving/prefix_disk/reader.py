"""Reads ahead on a thread of its own: the blocks of a prompt, one after another."""

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakSet

from tiny_llm_lab.serving.prefix_disk.folder import Bytes, Folder

_MOST_BYTES: Final = 64 << 20  # that are read and not taken
_MOST_ROWS: Final = 4096


@dataclass(frozen=True, eq=False)
class Wanted:
    """Files of a prompt: a name for each of its full blocks, and for a hybrid one for the states after it."""

    blocks: Sequence[bytes]
    states: Sequence[bytes]  # empty without states
    first: int  # so many blocks are in memory
    usable: int  # after so many a request can go on already


@dataclass(frozen=True)
class Row:
    """What was read: block `index`, the states after it, or nothing more."""

    wanted: Wanted
    index: int
    payload: Bytes
    kind: str  # "block", "states", "end"


class Reader:
    """Reads what is wanted in the order in which it was asked for."""

    def __init__(self, folder: Folder, block_bytes: int, state_bytes: int) -> None:
        """Files have payloads of so many bytes. The thread begins with the first call of `start`."""
        self._folder, self._block_bytes, self._state_bytes = folder, block_bytes, state_bytes
        self._asked: queue.SimpleQueue[Wanted | None] = queue.SimpleQueue()
        self._rows: queue.Queue[Row] = queue.Queue(max(2, min(_MOST_ROWS, _MOST_BYTES // block_bytes)))
        self._dropped = WeakSet[Wanted]()  # it may have been read already
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="prefix-reader", daemon=True)

    def start(self, wanted: Wanted) -> None:
        """Read this, in the background."""
        self._asked.put(wanted)
        if not self._thread.ident:
            self._thread.start()

    def drop(self, wanted: Wanted) -> None:
        """Nobody waits for this any more: what is not read is left out."""
        self._dropped.add(wanted)

    def take(self, seconds: float) -> Row | None:
        """The next row; None if there is none within so many seconds."""
        try:
            return self._rows.get(seconds > 0, seconds)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Read nothing more."""
        self._is_over = True
        self._asked.put(None)

    def _run(self) -> None:
        while (wanted := self._asked.get()) is not None and not self._is_over:
            try:
                self._read(wanted)
            finally:
                self._deliver(Row(wanted, 0, b"", "end"))

    def _read(self, wanted: Wanted) -> None:
        if wanted in self._dropped:
            return
        end, states = self._end_of(wanted)
        for index in range(wanted.first, end):
            payload = self._folder.read(wanted.blocks[index], self._block_bytes)
            if payload is None or self._is_over or wanted in self._dropped:
                return
            self._deliver(Row(wanted, index, payload, "block"))
        if states is not None:
            self._deliver(Row(wanted, end - 1, states, "states"))

    def _end_of(self, wanted: Wanted) -> tuple[int, Bytes | None]:
        """How many blocks to read, counted from the first of all, and the states after them."""
        there = len(wanted.blocks)
        if not wanted.states:
            return there, None
        for index in range(wanted.first, len(wanted.blocks)):
            if not self._folder.has(wanted.blocks[index]):
                there = index
                break
        for end in range(there, wanted.usable, -1):
            name = wanted.states[end - 1]
            if self._folder.has(name) and (states := self._folder.read(name, self._state_bytes)) is not None:
                return end, states
        return 0, None

    def _deliver(self, row: Row) -> None:
        while not self._is_over:
            try:
                self._rows.put(row, timeout=1.0)
                return
            except queue.Full:
                continue
