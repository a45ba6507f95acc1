"""Messages to the person who runs a command, how it is called, and the exit codes of all commands."""

import difflib
import logging
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final, TextIO

from tiny_llm_lab.runtime.checkout import has_checkout
from tiny_llm_lab.types import UserError

_MINUTE_S: Final = 60.0


class Remaining:
    """Counts pieces of work of about the same size; `clock` is in seconds."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._clock = total, clock
        self._done, self._start_s = 0, clock()

    def done(self) -> str:
        """Another piece is done: "3 of 11, about 8 minutes left"; for the last one "11 of 11"."""
        self._done += 1
        return self.now()

    def leave_out(self, count: int) -> None:
        """So many pieces will not be done."""
        self._total -= count

    def now(self) -> str:
        """The same with no further piece done: nothing is known of the time before the first."""
        place, left = f"{self._done} of {self._total}", self._total - self._done
        if not self._done or not left:
            return place
        left_s = (self._clock() - self._start_s) / self._done * left
        if left_s < _MINUTE_S:
            return f"{place}, less than a minute left"
        return f"{place}, about {plural(round(left_s / _MINUTE_S), 'minute')} left"


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


def say(line: str, indent: str = _INDENT) -> None:
    """Write a line to stdout; on a terminal it breaks between words, and `indent` begins the lines below."""
    print("\n".join(wrapped_lines(line, terminal_width(), indent)), flush=True)


def log(line: str = "") -> None:
    """Write a line to stderr, so that stdout has only data; on a terminal it breaks between words.

    It is `harmless`.
    """
    lines = wrapped_lines(harmless(line), terminal_width(sys.stderr))
    print("\n".join(lines), file=sys.stderr, flush=True)


def show(line: str) -> None:
    """On a terminal only, write a line to stderr in place of the one that was shown before; "" is none."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{harmless(line)}", end="", file=sys.stderr, flush=True)


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


class _Harmless(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """The line, without what a terminal would obey."""
        return harmless(super().format(record))


def configure_logging(level: int = logging.INFO) -> None:
    """Lines on stderr: tiny-llm's own from `level` on, and the warnings of libraries."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_Harmless("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    logging.getLogger(__name__.partition("_lab")[0]).setLevel(level)


@contextmanager
def writing(where: object, cure: str = "") -> Iterator[None]:
    """Raises UserError, which names `where` and a `cure`, if the block cannot write there."""
    try:
        yield
    except OSError as error:
        cured = f": {cure}" if cure else ""
        raise UserError(f"cannot write {where}: {error.strerror}{cured}") from None


def new_folder(out: Path) -> Path:
    """Make the folder `out`, with a number if it exists. Raises UserError if that fails."""
    folders = (out.with_name(f"{out.name}-{number}") if number > 1 else out for number in count(1))
    with writing(f"to {out}", "choose another --out"):
        folder = next(folder for folder in folders if not folder.exists())
        folder.mkdir(parents=True)
    return folder


INSTALLED: Final = "tiny-llm"


def program() -> str:
    """What you type before a command: `tiny-llm` if that was typed or there is no checkout."""
    is_installed = Path(sys.argv[0]).name == INSTALLED or not has_checkout()
    return INSTALLED if is_installed else "./pdmw run"
