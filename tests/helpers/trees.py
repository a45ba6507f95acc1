"""Small courses for tests: their files, and one thing changed in one of them."""

import re
from collections.abc import Mapping
from pathlib import Path

from tests.helpers.golden import GOLDEN


def course_files(name: str) -> dict[str, str]:
    """The files of tests/golden/courses/NAME.txt, by path."""
    _, *parts = re.split(r"(?m)^-- (.+) --\n", (GOLDEN / f"courses/{name}.txt").read_text("utf-8"))
    return dict(zip(parts[::2], parts[1::2], strict=True))


def write_files(root: Path, files: Mapping[str, str]) -> Path:
    """Make the files, by their paths below `root`, and return it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def edit(root: Path, name: str, old: str, new: str) -> None:
    """Change what occurs once in a file."""
    path = root / name
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
