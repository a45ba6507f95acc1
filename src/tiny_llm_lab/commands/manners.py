"""What every command does alike: talk on stderr, and end states that are not its own fault in one line."""

import functools
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Final

from tiny_llm_lab.cli import EXIT_INTERRUPTED
from tiny_llm_lab.course.manifest import repository
from tiny_llm_lab.course.todo import find_todo

__all__ = [
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "UnwrittenError",
    "counted",
    "say",
    "todo_line",
    "well_mannered",
]

EXIT_FAILED: Final = 1


class UnwrittenError(Exception):
    """A process of its own came upon an unwritten task; the message is its `todo_line`."""


Run = Callable[[Namespace], int]


def say(line: str = "") -> None:
    """Talk to the person: stderr, so that stdout stays data."""
    print(line, file=sys.stderr, flush=True)


def counted(number: int, noun: str = "token") -> str:
    """1 token, 2 tokens."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def well_mannered(run: Run) -> Run:
    """Wrap a command's `run`: an unwritten task and a reader that went away are not crashes."""

    @functools.wraps(run)
    def wrapped(args: Namespace) -> int:
        try:
            return run(args)
        except UnwrittenError as unwritten:
            say(str(unwritten))
            return EXIT_FAILED
        except RuntimeError as error:
            line = todo_line(error)
            if line is None:
                raise
            say(line)
            return EXIT_FAILED
        except BrokenPipeError:
            # `| head` closed stdout. Python would complain again when it flushes stdout at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_FAILED

    return wrapped


def todo_line(error: BaseException) -> str | None:
    """Which task the learner has yet to write, and where; None when `error` is something else."""
    todo = find_todo(error, repository())
    return f"{todo}, or run with --solution ref" if todo else None
