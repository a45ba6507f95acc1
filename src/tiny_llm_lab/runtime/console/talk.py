"""Messages to the person who runs a command, and the exit codes of all commands."""

import difflib
import re
import sys
from collections.abc import Iterable
from typing import Final

from tiny_llm_lab.runtime.console.wrapping import terminal_width, wrapped_lines

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
_LONG_WORD: Final = re.compile(r"[\w.+-]{200,}")
# Control characters but for tab and line break, and those that turn the direction of a text.
_OBEYED: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class UnwrittenError(Exception):
    """A child process reached an unwritten task; the message names the task and the place."""


class CrashError(Exception):
    """A child process ended without an answer; the message is what it said."""


def log(line: str = "") -> None:
    """Write a line to stderr, so that stdout has only data; on a terminal it breaks between words.

    It is `harmless`.
    """
    lines = wrapped_lines(harmless(line), terminal_width(sys.stderr))
    print("\n".join(lines), file=sys.stderr, flush=True)


def shortened(line: str) -> str:
    """`line`, without the middle of what it quotes if that is very long, such as a number of 400 digits."""
    return _LONG_WORD.sub(lambda found: f"{found[0][:40]}...", line)


def harmless(text: str) -> str:
    """`text` with escapes such as \\x1b for what a terminal obeys: a downloaded file may have such names."""
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


def plural(number: int, noun: str = "token") -> str:
    """1 token, 2 tokens."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", cutoff: float = 0.6) -> str:
    """A question with the one in `known` that is most like `name`; `otherwise` if none is."""
    near = difflib.get_close_matches(name, known, 1, cutoff)
    return f"did you mean {near[0]}?" if near else otherwise
