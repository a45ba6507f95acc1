"""Copies of a learner's files, made before a command changes them."""

import itertools
import shutil
from pathlib import Path


def free_name(path: Path) -> Path:
    """The first of NAME.backup1, NAME.backup2, ... that does not exist."""
    names = (path.with_name(f"{path.name}.backup{number}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())


def keep_backup(path: Path) -> Path:
    """Copy a file next to itself; returns the copy."""
    return Path(shutil.copyfile(path, free_name(path)))
