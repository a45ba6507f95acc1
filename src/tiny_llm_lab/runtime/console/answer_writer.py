"""An answer on stdout while it is made."""

import re
from typing import TextIO

from rich.cells import cell_len

from tiny_llm_lab.runtime.console.talk import harmless, terminal_width

_WORDS = re.compile(r"(\n|[^\S\n]+)")


class AnswerWriter:
    """Writes an answer to `stream` as it comes; on a terminal a word that does not fit begins a new line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._width = stream, terminal_width(stream)
        self._column, self._blanks = 0, ""  # blanks are held until a word follows them on the same line
        self._word = ""  # the last word is held until it is whole

    def write(self, piece: str) -> None:
        """Write what of the answer is certain once `piece` has come."""
        if self._width is None:
            self._put(piece)
            return
        *parts, self._word = _WORDS.split(self._word + piece)
        for part in parts:
            self._place(part, self._width)

    def end(self) -> None:
        """Write the rest and end the line."""
        if self._width is not None:
            self._place(self._word, self._width)
        self._put("\n")

    def _place(self, part: str, width: int) -> None:
        if part == "\n":
            self._put(part)
            self._column, self._blanks = 0, ""
        elif part.isspace():
            self._blanks += part
        elif part:
            before = self._blanks
            if self._column and self._column + cell_len(before + part) > width:
                before, self._column = "\n", 0
            self._put(before + part)
            self._column += cell_len(before.strip("\n") + part)
            self._blanks = ""

    def _put(self, text: str) -> None:
        self._stream.write(text if self._width is None else harmless(text))
        self._stream.flush()
