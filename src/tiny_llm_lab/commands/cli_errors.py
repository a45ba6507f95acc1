"""What every command does alike: talk on stderr, and end states that are not its own fault in one line."""

import errno
import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, ParamSpec

from tiny_llm_lab.commands.wrapping import terminal_width, wrapped_lines
from tiny_llm_lab.course.growth import growths
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.missing_parameter import find_missing
from tiny_llm_lab.course.todo import find_todo
from tiny_llm_lab.types import UserError

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
# What a write to stdout fails with that is no fault of the program.
_CANNOT_WRITE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

P = ParamSpec("P")


class UnwrittenError(Exception):
    """A process of its own came upon an unwritten task; the message is its `todo_line`."""


class CrashError(Exception):
    """A process of its own ended without an answer; the message is what it said."""


def log(line: str = "") -> None:
    """Talk to the person: on stderr, so that stdout stays data; on a terminal broken between words."""
    print("\n".join(wrapped_lines(line, terminal_width(sys.stderr))), file=sys.stderr, flush=True)


def plural(number: int, noun: str = "token") -> str:
    """1 token, 2 tokens."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def handle_errors(run: Callable[P, int]) -> Callable[P, int]:
    """Wrap `run` so that bad input, Ctrl-C, an unwritten task and a stdout that ends are one line or none."""

    @functools.wraps(run)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            try:
                code = run(*args, **kwargs)
            except SystemExit as end:
                if end.code:
                    raise
                code = 0  # argparse ends so after --help
            sys.stdout.flush()  # now: at exit a full disk or a closed pipe would be a traceback
        except (Exception, KeyboardInterrupt) as error:
            code, line = _ending(error)
            if line:
                if "MLX_RANK" in os.environ:  # who ends this rank meanwhile could not tell that it has spoken
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                log(line)
        return code

    return wrapped


def todo_line(error: BaseException) -> str | None:
    """Which task the learner has yet to write, and where; None when `error` is something else."""
    try:
        course = load_course()
        todo = find_todo(error, course.root)
        todo = todo or find_missing(error, growths(course), course.starter, course.root)
    except UserError:
        return None  # without a checkout there are no tasks
    return f"{todo}, or run with --solution ref" if todo else None


def _ending(error: BaseException) -> tuple[int, str]:
    """Exit code and last line for `error`; raises what is a fault of the program."""
    match error:
        case UserError():
            return EXIT_USAGE, f"error: {error}"
        case KeyboardInterrupt():
            return EXIT_INTERRUPTED, "interrupted"
        case UnwrittenError() | CrashError():
            return EXIT_FAILED, str(error)
        case SyntaxError(filename=str(path)):
            return EXIT_USAGE, f"error: {_shown(path)}:{error.lineno}: {error.msg}: mend that line first"
        case RuntimeError() | TypeError() if line := todo_line(error):
            return EXIT_FAILED, line
        case BrokenPipeError():
            _drop_stdout()
            return EXIT_FAILED, ""
        case OSError() if error.filename is None and error.errno in _CANNOT_WRITE:
            _drop_stdout()
            return EXIT_FAILED, f"error: cannot write to stdout: {error.strerror}"
    raise error


def _drop_stdout() -> None:
    # Python would complain again when it flushes stdout at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _shown(path: str) -> str:
    here = Path.cwd()
    return str(Path(path).relative_to(here) if Path(path).is_relative_to(here) else path)
