"""The progress of a compilation, on stderr."""

import sys
import threading
from typing import Self


class Progress:
    """One line for `total` files, counted up in place on a terminal. Several threads may share it."""

    def __init__(self, what: str, total: int) -> None:
        self._total = total
        self._begin = f"compiling {what} (once{', up to a minute' if total > 1 else ''}) ..."
        self._num_done = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._say(self._begin, end="" if self._counts() else "\n")
        return self

    def advance(self) -> None:
        """Count one more compiled file."""
        with self._lock:
            self._num_done += 1
            if self._counts():
                self._say(f"\r{self._begin} {self._num_done} of {self._total}", end="")

    def __exit__(self, *_: object) -> None:
        if self._counts():
            self._say("")

    def _counts(self) -> bool:
        return self._total > 1 and sys.stderr.isatty()

    def _say(self, text: str, end: str = "\n") -> None:
        print(text, end=end, file=sys.stderr, flush=True)
