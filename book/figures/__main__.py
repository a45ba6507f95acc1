"""Draws the figures of the book: `python -m book.figures [--into FOLDER] [NAME …]`, all without a name.

A figure is a file of this folder with `draw() -> str`, an SVG: `rope_clock.py` draws `rope-clock.svg`. What
it shows is computed by the reference, so that it cannot say what the code does not do.
"""

import argparse
import importlib
from pathlib import Path

_HERE = Path(__file__).parent
_TARGET = _HERE.parent / "src" / "figures"
_NO_FIGURES = {"__main__", "drawing"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m book.figures", description=__doc__)
    parser.add_argument("names", nargs="*", help="files of book/figures, without .py")
    parser.add_argument("--into", type=Path, default=_TARGET, help="the folder to write to")
    args = parser.parse_args()
    args.into.mkdir(parents=True, exist_ok=True)
    known = [path.stem for path in sorted(_HERE.glob("*.py")) if path.stem not in _NO_FIGURES]
    for name in args.names or known:
        svg = importlib.import_module(f"book.figures.{name}").draw()
        (args.into / f"{name.replace('_', '-')}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
