"""Small courses for tests: their files, and one thing changed in one of them."""

from collections.abc import Mapping
from pathlib import Path


def course_toml(*rows: str) -> str:
    """Tables of rows such as `day: id = "1.1"; title = "One"`."""
    parts = (row.partition(": ") for row in rows)
    return "".join(f"[[{table}]]\n{keys.replace('; ', chr(10))}\n" for table, _, keys in parts)


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
