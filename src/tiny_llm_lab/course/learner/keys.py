"""Keys that are pressed in a terminal, one at a time and without Enter."""

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def pressed_keys() -> Iterator[Callable[[], str] | None]:
    """A function that returns the next key or "" at once; None where stdin or stdout is no terminal.

    At the end of stdin, as when the terminal is closed, it returns "q".
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield None
        return
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    tty.setcbreak(stdin)  # Ctrl-C still interrupts
    try:
        yield lambda: _read(stdin) if select.select([stdin], [], [], 0)[0] else ""
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _read(stdin: int) -> str:
    return os.read(stdin, 1).decode(errors="replace") or "q"
