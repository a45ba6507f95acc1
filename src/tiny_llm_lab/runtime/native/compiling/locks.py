"""A lock between processes, so that two first runs do not compile the same library twice."""

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def file_lock(path: Path, waiting: str) -> Iterator[None]:
    """Hold the lock `path`, a file that exists no longer than it is held; print `waiting` if there is a wait.

    Raises OSError if the file cannot be made. On a file system that knows no locks it excludes no process.
    """
    held = _locked(path, waiting)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(held)


def _locked(path: Path, waiting: str) -> int:
    while True:
        held = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(waiting, file=sys.stderr, flush=True)
            fcntl.flock(held, fcntl.LOCK_EX)
        except OSError:
            return held
        if _is_file(held, path):
            return held
        os.close(held)  # its holder removed it in the meantime: the next one is a new file


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
