"""How a command ends: bad input, Ctrl-C, an unwritten task and a closed stdout are one line or none."""

import errno
import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, ParamSpec

from tiny_llm_lab.course.exercises import find_missing, growths
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.runtime.console.talk import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    CrashError,
    UnwrittenError,
    log,
    shortened,
)
from tiny_llm_lab.runtime.console.todo import WITH_REF, find_todo
from tiny_llm_lab.types import UserError

_EXTRAS: Final = {
    "serve": ("fastapi", "starlette", "pydantic", "uvicorn", "httptools", "prometheus_client", "httpx2"),
    "measure": ("matplotlib",),
    "course": ("pytest", "xdist", "pytest_timeout", "hypothesis", "watchfiles"),
    "ray": ("ray", "pyarrow"),
}


def missing_extra(error: ModuleNotFoundError) -> UserError | None:
    """What to say where the library of an extra is not installed; None for any other module."""
    library = (error.name or "").partition(".")[0]
    extra = next((name for name, libraries in _EXTRAS.items() if library in libraries), None)
    if extra is None:
        return None
    return UserError(f"{library} is not installed: run pip install 'WHEEL[{extra}]', with its file name")


# When a write to stdout fails with one of these, it is not the program's fault.
_CANNOT_WRITE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

P = ParamSpec("P")


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
            sys.stdout.flush()  # flush now: at exit, a full disk or a closed pipe would print a traceback
        except (Exception, KeyboardInterrupt) as error:
            code, line = _ending(error)
            if line:
                if "MLX_RANK" in os.environ:  # a rank that ends this one can't tell that it has printed
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
    return f"{todo}{WITH_REF}" if todo else None


def _ending(error: BaseException) -> tuple[int, str]:
    """Exit code and last line for `error`; an error of the program itself is raised again."""
    match error:
        case UserError():
            return EXIT_USAGE, f"error: {shortened(str(error))}"
        case ModuleNotFoundError() if missing := missing_extra(error):
            return EXIT_USAGE, f"error: {missing}"
        case KeyboardInterrupt():
            return EXIT_INTERRUPTED, "interrupted"
        case UnwrittenError() | CrashError():
            return EXIT_FAILED, str(error)
        case SyntaxError(filename=str(path)):
            return EXIT_USAGE, f"error: {_shown(path)}:{error.lineno}: {error.msg}: fix that line first"
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
