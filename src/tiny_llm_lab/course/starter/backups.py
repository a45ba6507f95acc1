"""Versions of a learner's file that a command has replaced, next to it."""

import itertools
import shutil
from pathlib import Path


def backups(path: Path) -> list[Path]:
    """NAME.backup1, NAME.backup2, ... as far as they exist, the oldest first."""
    names = (path.with_name(f"{path.name}.backup{number}") for number in itertools.count(1))
    return list(itertools.takewhile(Path.exists, names))


def free_name(path: Path) -> Path:
    """The first of NAME.backup1, NAME.backup2, ... that does not exist."""
    return path.with_name(f"{path.name}.backup{len(backups(path)) + 1}")


def keep_backup(path: Path) -> Path:
    """Copy a file next to itself; returns the copy."""
    return Path(shutil.copyfile(path, free_name(path)))
