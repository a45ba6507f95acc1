"""A lock between processes, so that two first runs do not compile the same library twice."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout


@contextlib.contextmanager
def file_lock(path: Path, waiting: str) -> Iterator[None]:
    """Hold the lock `path`; print `waiting` if there is a wait.

    Raises OSError if the file cannot be made. On a file system that knows no locks it excludes no process.
    """
    path.touch()
    lock = FileLock(path)
    with contextlib.suppress(NotImplementedError, OSError):
        try:
            lock.acquire(blocking=False)
        except Timeout:
            print(waiting, file=sys.stderr, flush=True)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()
