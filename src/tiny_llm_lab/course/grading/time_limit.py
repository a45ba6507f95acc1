"""A time limit for each test: an endless loop in a learner's code fails its test, and is named."""

import os
import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from tiny_llm_lab.course.grading.selection import Selection

LIMIT_S = 60.0
OWN_LIMIT = "time_limit(seconds): for a test that may take longer than others"
# A loop in C++ does not come back to Python, where the signal would end it: then the process ends.
_GRACE_S = 15.0
# For code that catches even this exception and goes on.
_REPEAT_S = 1.0
# Who waits for these waits for another process, which is busy or has a limit of its own.
_WAITING = (
    "subprocess",
    "tiny_llm_lab.runtime.native.compiling.build",
    "tiny_llm_lab.runtime.ranks",
    "tests.helpers.rank",
)


class TimeLimitError(BaseException):
    """A test did not end in time. No `except Exception` of a learner's code stops it."""


class TimeLimit:
    """Ends each phase of a test of the learner's code after `--time-limit` seconds."""

    def __init__(self, config: pytest.Config, selection: Selection) -> None:
        given = config.getoption("--time-limit")
        self._limit_s: float = given if given is not None else LIMIT_S * (selection.solution == "mine")
        self._selection = selection
        self._stderr = os.dup(2)  # where messages appear while pytest captures the output of a test

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        with self._limited(item):
            yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        with self._limited(item):
            yield

    def pytest_unconfigure(self) -> None:
        os.close(self._stderr)

    @contextmanager
    def _limited(self, item: pytest.Item) -> Iterator[None]:
        marker = item.get_closest_marker("time_limit")
        limit_s = float(marker.args[0]) if marker and self._limit_s else self._limit_s
        if not limit_s or threading.current_thread() is not threading.main_thread():
            yield
            return
        task = self._selection.task_of(item)
        of_task = f" of task {task.id}" if task else ""
        says = (
            f"{item.nodeid}{of_task} did not end within {limit_s:g} s: is there a loop that never ends? "
            "--time-limit 0 takes the limit away"
        )
        clock = _Clock(limit_s, says, self._stderr)
        try:
            yield
        finally:
            clock.stop()


class _Clock:
    """Raises TimeLimitError in the main thread, or ends the process when that cannot be reached."""

    def __init__(self, limit_s: float, says: str, stderr: int) -> None:
        self._limit_s, self._says, self._stderr = limit_s, says, stderr
        self._before = signal.signal(signal.SIGALRM, self._ring)
        self._wind()

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._last_resort.cancel()
        signal.signal(signal.SIGALRM, self._before)

    def _wind(self) -> None:
        self._last_resort = threading.Timer(self._limit_s + _GRACE_S, self._end)
        self._last_resort.daemon = True
        self._last_resort.start()
        signal.setitimer(signal.ITIMER_REAL, self._limit_s, _REPEAT_S)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        __tracebackhide__ = True  # the line that was running is what counts
        if not _is_waiting(frame):
            raise TimeLimitError(self._says)
        self._last_resort.cancel()
        self._wind()

    def _end(self) -> None:
        os.write(self._stderr, f"\n{self._says}\n".encode())
        os._exit(1)


def _is_waiting(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") in _WAITING:
            return True
        frame = frame.f_back
    return False
