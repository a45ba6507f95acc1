"""The command line: finds the command, reads its flags, runs it, and lists the commands."""

import argparse
import errno
import functools
import os
import signal
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn, ParamSpec

from tiny_llm_lab.cli.commands import COMMANDS
from tiny_llm_lab.course.exercises import find_missing, growths
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.runtime.checkout import has_checkout, repository
from tiny_llm_lab.runtime.console import talk
from tiny_llm_lab.runtime.console.commands import Catalogue, CommandParser
from tiny_llm_lab.runtime.console.talk import INSTALLED, program
from tiny_llm_lab.runtime.console.todo import WITH_REF, find_todo
from tiny_llm_lab.types import UserError

_EXTRAS: Final = {
    "serve": tuple("fastapi starlette pydantic uvicorn httptools prometheus_client httpx2 PIL".split()),
    "measure": ("matplotlib",),
    "course": ("pytest", "xdist", "hypothesis", "watchfiles"),
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
                talk.log(line)
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
            return talk.EXIT_USAGE, f"error: {talk.shortened(str(error))}"
        case ModuleNotFoundError() if missing := missing_extra(error):
            return talk.EXIT_USAGE, f"error: {missing}"
        case KeyboardInterrupt():
            return talk.EXIT_INTERRUPTED, "interrupted"
        case talk.UnwrittenError() | talk.CrashError():
            return talk.EXIT_FAILED, str(error)
        case SyntaxError(filename=str(path)):
            return talk.EXIT_USAGE, f"error: {_shown(path)}:{error.lineno}: {error.msg}: fix that line first"
        case RuntimeError() | TypeError() if line := todo_line(error):
            return talk.EXIT_FAILED, line
        case BrokenPipeError():
            _drop_stdout()
            return talk.EXIT_FAILED, ""
        case OSError() if error.filename is None and error.errno in _CANNOT_WRITE:
            _drop_stdout()
            return talk.EXIT_FAILED, f"error: cannot write to stdout: {error.strerror}"
    raise error


def _drop_stdout() -> None:
    # Python would complain again when it flushes stdout at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _shown(path: str) -> str:
    here = Path.cwd()
    return str(Path(path).relative_to(here) if Path(path).is_relative_to(here) else path)


_ALIASES: Final = {"run": "main"}  # for somebody new "run" says more than "main"


@handle_errors
def main(argv: list[str] | None = None, catalogue: Catalogue = COMMANDS) -> int:
    """Run one command of a catalogue; bad input is one line on stderr and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    name = argv[0] if argv else ""
    if name in ("", "-h", "--help"):
        return _list_commands(catalogue)
    typed, name = name, _ALIASES.get(name, name)
    if name not in catalogue.modules:
        meant = talk.did_you_mean(name, _listed(catalogue).values())
        listing = f"{INSTALLED if program() == INSTALLED else './pdmw'} alone lists the commands"
        raise UserError(f"unknown command {name!r}: {f'{meant} {listing}'.lstrip()}")
    if name in catalogue.of_clone and not has_checkout():
        raise UserError(f"{name} needs the course's files, which are not installed: clone the project")
    parser = catalogue.parser(name, typed)
    args, unknown = parser.parse_known_args(argv[1:], argparse.Namespace(command=name, argv=argv[1:]))
    if unknown and "handed_on" not in args:
        _refuse(unknown, parser, getattr(catalogue.load(name), "ELSEWHERE", {}))
    args.handed_on = unknown
    return int(catalogue.load(name).run(args))


def _refuse(unknown: list[str], parser: CommandParser, elsewhere: dict[str, str]) -> NoReturn:
    for flag in (word.partition("=")[0] for word in unknown):
        if flag in elsewhere:
            raise UserError(f"there is no {flag} here: {elsewhere[flag]}")
    flag = unknown[0].partition("=")[0]
    if meant := talk.did_you_mean(flag, parser.flags, cutoff=0.75):
        raise UserError(f"there is no {flag} here: {meant}")
    parser.error(f"unrecognized arguments: {' '.join(unknown)}")


def _list_commands(catalogue: Catalogue) -> int:
    """What the first commands do, and the names of all others."""
    run, listed, width = program(), _listed(catalogue), talk.terminal_width()
    first = [own for own in catalogue.first if own in listed]
    room = max(len(listed[own]) for own in first)
    for own in first:
        start = f"  {run} {listed[own]:<{room}}  "
        print(*talk.wrapped_lines(f"{start}{catalogue.help_of(own)}", width, " " * len(start)), sep="\n")
    rest = {"More": [name for own, name in listed.items() if own not in first]}
    if catalogue.others and run != INSTALLED:
        rest[catalogue.others] = [name for name in _scripts() if name not in catalogue.modules]
    for title, names in rest.items():
        if names:
            print(*talk.wrapped_lines(f"{title}: {', '.join(names)}", width, "  "), sep="\n")
    print(f"{run} COMMAND --help lists the flags of a command.")
    return 0


def _scripts() -> list[str]:
    """The names of all commands of the clone."""
    project = tomllib.loads((repository() / "pyproject.toml").read_text("utf-8"))
    return list(project["tool"]["pdm"]["scripts"])


def _listed(catalogue: Catalogue) -> dict[str, str]:
    """The commands that can run here, and the name that each is shown by."""
    installed = {own: alias for alias, own in _ALIASES.items()} if program() == INSTALLED else {}
    return {
        name: installed.get(name, name)
        for name in catalogue
        if has_checkout() or name not in catalogue.of_clone
    }
