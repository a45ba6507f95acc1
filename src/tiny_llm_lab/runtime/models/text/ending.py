"""Ends Python code that may loop forever."""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TooLongError(Exception):
    """Code did not end in time."""

    def __str__(self) -> str:
        return "it does not end"


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """Raise TooLongError within the block, in this thread, when it takes longer."""
    thread = ctypes.c_ulong(threading.get_ident())
    late = ctypes.py_object(TooLongError)
    timer = threading.Timer(seconds, ctypes.pythonapi.PyThreadState_SetAsyncExc, (thread, late))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
