"""What every command does alike: talk on stderr, and end states that are not its own fault in one line."""

import functools
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Final

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130

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
        except NotImplementedError as todo:
            if not is_task(todo):
                raise
            say(f"TODO: {todo_line(todo)}")
            return EXIT_FAILED
        except BrokenPipeError:
            # `| head` closed stdout. Python would complain again when it flushes stdout at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_FAILED

    return wrapped


def is_task(error: NotImplementedError) -> bool:
    """Whether a body of the course was reached that the learner has yet to write."""
    return str(error).startswith("task ")


def todo_line(error: NotImplementedError) -> str:
    """Which task is missing and how to go on."""
    return f"{error} is not written yet: write it in src/tiny_llm, or run with --solution ref"
