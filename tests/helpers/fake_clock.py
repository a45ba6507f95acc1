"""A clock that a test moves."""

import sys
import threading
import time

import pytest


class FakeClock:
    """Time passes only when a model computes, when code sleeps, and (a little) when the clock is read."""

    def __init__(self, tick: float = 0.0, start: float = 0.0) -> None:
        self.now = start
        self.tick = tick
        self.naps: list[float] = []
        self._reads = 0

    def __call__(self) -> float:
        self._reads += 1
        if self._reads > 100_000:
            raise AssertionError("the clock was read 100,000 times: does this run ever end?")
        self.now += self.tick
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += max(seconds, 1e-4)

    def take_over(self, monkeypatch: pytest.MonkeyPatch, user: object) -> None:
        """Advance this clock when this thread sleeps, by `time.sleep` or the `sleep` of `user`'s module."""
        own, real_sleep = threading.get_ident(), time.sleep

        def sleep(seconds: float) -> None:
            # The thread that waits for the ranks of other tests sleeps as well.
            (self.sleep if threading.get_ident() == own else real_sleep)(seconds)

        monkeypatch.setattr(time, "sleep", sleep)
        monkeypatch.setattr(sys.modules[user.__module__], "sleep", sleep, raising=False)
