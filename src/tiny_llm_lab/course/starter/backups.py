"""Files that a command writes, and the versions of a learner's that it has replaced, next to them."""

import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files, by their paths in `folder`."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


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
