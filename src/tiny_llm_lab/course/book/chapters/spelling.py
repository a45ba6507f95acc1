"""Spelling of the pages and the docstrings: codespell's list of common mistakes."""

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

# Text for readers: files below these that end so.
TEXTS: Final = ("README.md", "CONTRIBUTING.md", "docs", "book/src", "course.toml")
CODE: Final = ("src/tiny_llm_ref", "src/tiny_llm_lab", "book/figures")
_ENDS: Final = {".md", ".toml", ".py", ".h", ".cpp", ".metal"}
# Right here: a name in the corpus of the default model's stories.
_RIGHT: Final = ("ines",)


def spelling_problems(root: Path, places: Sequence[str] = (*TEXTS, *CODE)) -> list[str]:
    """Words of the list with their file and line, and what was meant."""
    if importlib.util.find_spec("codespell_lib") is None:
        return ["codespell is not installed: `./pdmw install` brings it"]
    files = [path for place in places for path in _files(root / place)]
    command = [
        sys.executable,
        "-m",
        "codespell_lib",
        "--ignore-words-list",
        ",".join(_RIGHT),
        *map(str, files),
    ]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode and not done.stdout:
        return [f"codespell fails: {(done.stderr.strip().splitlines() or ['no word why'])[-1]}"]
    return [line.removeprefix(f"{root}/").removeprefix("./") for line in done.stdout.splitlines()]


def _files(place: Path) -> list[Path]:
    paths = sorted(place.rglob("*")) if place.is_dir() else [place]
    return [path for path in paths if path.suffix in _ENDS and path.is_file()]
