"""Draws the figures of the book: `python -m book.figures [--into FOLDER] [NAME …]`, all without a name.

A figure is a file of this folder with `draw() -> str`, an SVG: `rope_clock.py` draws `rope-clock.svg`. What
it shows is computed by the reference, so that it cannot say what the code does not do. A figure with sliders
has `KNOBS` too; without a name `frames.js` is written for them.
"""

import argparse
import importlib
from pathlib import Path

from book.figures.knobs import script

_HERE = Path(__file__).parent
_TARGET = _HERE.parent / "src" / "figures"
_NO_FIGURES = {"__main__", "drawing", "knobs", "lab_bars"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m book.figures", description=__doc__)
    parser.add_argument("names", nargs="*", help="files of book/figures, without .py")
    parser.add_argument("--into", type=Path, default=_TARGET, help="the folder to write to")
    args = parser.parse_args()
    args.into.mkdir(parents=True, exist_ok=True)
    known = [path.stem for path in sorted(_HERE.glob("*.py")) if path.stem not in _NO_FIGURES]
    modules = {name: importlib.import_module(f"book.figures.{name}") for name in args.names or known}
    for name, module in modules.items():
        (args.into / f"{_shown(name)}.svg").write_text(module.draw(), encoding="utf-8")
    if not args.names:
        knobs = {_shown(name): each.KNOBS for name, each in modules.items() if hasattr(each, "KNOBS")}
        (args.into / "frames.js").write_text(script(knobs), encoding="utf-8")


def _shown(name: str) -> str:
    return name.replace("_", "-")


if __name__ == "__main__":
    main()
