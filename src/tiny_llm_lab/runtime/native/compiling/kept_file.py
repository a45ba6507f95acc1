"""A file in the cache: complete under its name, or made again."""

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import Final

_OLD_S: Final = 86400.0  # no compiler runs for a day


def keep(made: Path, path: Path) -> None:
    """Move `made` to `path`: all of it or nothing, even without locks or when the power fails."""
    with made.open("rb") as file:
        os.fsync(file.fileno())
    _size_of(path).write_text(str(made.stat().st_size), encoding="utf-8")
    made.replace(path)


def is_whole(path: Path) -> bool:
    """Whether `path` has the size that `keep` gave it: reading past the end of a library kills a process."""
    try:
        return path.stat().st_size == int(_size_of(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


def remove_old(folder: Path, pattern: str) -> None:
    """Remove folders that killed processes left in `folder`: those without a new file for a day."""
    for left in folder.glob(pattern):
        with contextlib.suppress(OSError):  # another process may do the same
            if time.time() - left.stat().st_mtime > _OLD_S:
                shutil.rmtree(left)


def _size_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.size")
