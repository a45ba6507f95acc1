"""What mdBook calls while it builds the book: formulas become MathML.

`book` names this module to mdBook.
"""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import IO, Final

from tools.book.formulas import with_mathml

_MODULE: Final = "tools.book.preprocessor"
_CLONE: Final = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """The variables that tell mdBook to call this module with the interpreter that runs now."""
    command = shlex.join([sys.executable, "-m", _MODULE])
    paths = [str(_CLONE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"MDBOOK_PREPROCESSOR__FORMULAS__COMMAND": command, "PYTHONPATH": os.pathsep.join(paths)}


def convert_book(stream: IO[str]) -> str:
    """mdBook's JSON `[context, book]` on a stream, as the JSON of a book whose chapters are ready to show."""
    _, book = json.load(stream)
    _convert_items(book["items"])
    return json.dumps(book)


def _convert_items(items: list[object]) -> None:
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None  # others: separators, titles
        if chapter is not None:
            chapter["content"] = with_mathml(chapter["content"])
            _convert_items(chapter["sub_items"])


if __name__ == "__main__":
    # mdBook asks first, with `supports RENDERER`, and takes exit code 0 for yes.
    if sys.argv[1:2] != ["supports"]:
        sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        sys.stdout.write(convert_book(sys.stdin))
