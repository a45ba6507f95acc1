"""Long lines on a terminal: broken between words and indented, so that no name is cut in its middle."""

import shutil
import sys
import textwrap
from typing import Final, TextIO

_INDENT: Final = "  "
_LEAST: Final = 40  # below this, breaking between words leaves more gaps than text


def wrapped_lines(line: str, width: int | None, indent: str = _INDENT) -> list[str]:
    """A line as lines of at most `width` characters, after the first one with `indent`.

    A word that is wider stays whole, so that a path can be copied. A width of None, as in a pipe, breaks
    nothing; line breaks in `line` stay.
    """
    if width is None or width < _LEAST:
        return line.split("\n")
    return [
        part
        for each in line.split("\n")
        for part in textwrap.wrap(
            each, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        or [""]
    ]


def terminal_width(stream: TextIO | None = None) -> int | None:
    """The columns of the terminal that `stream`, or else stdout, goes to; None where it is none."""
    stream = stream or sys.stdout
    return shutil.get_terminal_size().columns if stream.isatty() else None
