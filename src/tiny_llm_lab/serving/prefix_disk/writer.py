"""Writes on a thread of its own. Nobody waits for it: what has no room is not taken."""

import queue
import threading
from collections.abc import Callable
from typing import Final

_MOST_BYTES: Final = 256 << 20  # that wait in memory for a slow disk


class Writer:
    """Runs calls in their order, on a thread that begins with the first."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most = most_bytes
        self._calls: queue.Queue[tuple[Callable[[], None], int] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="prefix-writer", daemon=True)
        self._waiting = 0
        self._lock = threading.Lock()

    def has_room(self, nbytes: int) -> bool:
        """Whether a call that holds `nbytes` would be taken; one always is when none waits."""
        return self._waiting == 0 or self._waiting + nbytes <= self._most

    def submit(self, call: Callable[[], None], nbytes: int = 0) -> None:
        """Run `call`, which holds `nbytes`, after those before it."""
        with self._lock:
            self._waiting += nbytes
        self._calls.put((call, nbytes))
        if not self._thread.ident:
            self._thread.start()

    def close(self, seconds: float = 10.0) -> None:
        """Run what waits, for at most so long, and end."""
        self._calls.put(None)
        if self._thread.ident:
            self._thread.join(seconds)

    def _run(self) -> None:
        while (taken := self._calls.get()) is not None:
            call, nbytes = taken
            try:
                call()
            finally:
                with self._lock:
                    self._waiting -= nbytes
