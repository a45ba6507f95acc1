"""Figures of the book: book/figures draws them, a page shows them, and a text describes them."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tiny_llm_lab.runtime.checkout import text_of
from tools.book.page import Page

_IMAGE: Final = re.compile(r"!\[(?P<text>[^\]]*)\]\((?P<path>[^)\s]+)\)")
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")
_SHORTEST_TEXT: Final = 20
# Machines round differently, and a figure shows only two digits.
_RELATIVE, _ABSOLUTE = 0.01, 0.021


def image_problems(page: Page) -> list[str]:
    """Images without alternative text."""
    return [
        f"{page.name}: {match['path']} needs alternative text: describe the figure in a sentence"
        for match in _IMAGE.finditer(page.text)
        if len(match["text"]) < _SHORTEST_TEXT
    ]


def figure_problems(root: Path, pages: Sequence[Page]) -> list[str]:
    """Figures that are stale, that no script draws, or that no page shows; runs all scripts."""
    kept = root / "book" / "src" / "figures"
    with tempfile.TemporaryDirectory() as folder:
        error = draw_figures(root, Path(folder))
        if error:
            return [f"cannot draw the figures: {error}"]
        return [*_stale(kept, Path(folder)), *_unused(kept, pages)]


def draw_figures(root: Path, folder: Path) -> str | None:
    """Draw all figures of the book into `folder`; returns the last line of an error, or None."""
    paths = [str(root / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "book.figures", "--into", str(folder)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TINY_LLM_KERNELS": "off"},
        capture_output=True,
        text=True,
    )
    return (done.stderr.strip().splitlines() or ["no word why"])[-1] if done.returncode else None


def is_same_drawing(one: str, other: str) -> bool:
    """Whether two SVG files are the same except for rounding."""
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(abs(float(a) - float(b)) <= _ABSOLUTE + _RELATIVE * abs(float(a)) for a, b in pairs)


def _stale(kept: Path, drawn: Path) -> Iterator[str]:
    names = {path.name for folder in (kept, drawn) for path in folder.iterdir()}
    for name in sorted(names):
        if not (drawn / name).exists():
            yield f"book/src/figures/{name}: no script in book/figures draws it: delete it"
        elif not (kept / name).exists() or not is_same_drawing(text_of(kept / name), text_of(drawn / name)):
            yield f"book/src/figures/{name}: the figure is stale: run ./pdmw run book"


def _unused(kept: Path, pages: Sequence[Page]) -> Iterator[str]:
    shown = "\n".join(page.text for page in pages)
    for path in sorted(kept.iterdir()):
        if path.suffix != ".js" and f"figures/{path.name})" not in shown:
            yield f"book/src/figures/{path.name}: no page shows it: use it or delete it"
        elif path.suffix == ".svg" and "<title>" not in text_of(path):
            yield f"book/src/figures/{path.name}: add a <title>, which screen readers read out"
