"""The command line. A command is a module with HELP, add_arguments(parser) and run(args) -> exit code.

It may also have EXAMPLES, (arguments, what they do) pairs that end its --help, and ELSEWHERE, flags of other
programs that it does not take, with what does the same here.
"""

import argparse
import ast
import difflib
import importlib
import shutil
import sys
import textwrap
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

from tiny_llm_lab.borrowing import borrow_files
from tiny_llm_lab.commands.cli_errors import EXIT_INTERRUPTED, EXIT_USAGE, handle_errors
from tiny_llm_lab.commands.program import INSTALLED, has_checkout, program
from tiny_llm_lab.commands.wrapping import terminal_width, wrapped_lines
from tiny_llm_lab.types import UserError

__all__ = ["COMMANDS", "EXIT_INTERRUPTED", "EXIT_USAGE", "main"]

# In the order in which a newcomer needs them: the list of commands shows these groups.
_GROUPS: Final = {
    "Begin with": {
        "main": "tiny_llm_lab.commands.main",
        "batch-main": "tiny_llm_lab.commands.batch_main",
    },
    "Serve": {
        "serve": "tiny_llm_lab.server.command",
        "chat": "tiny_llm_lab.chat.command",
        "cluster": "tiny_llm_lab.cluster.command",
        "batch": "tiny_llm_lab.offline.command",
    },
    "Experiment": {
        "lab": "tiny_llm_lab.labs.command",
    },
    "The course": {
        "status": "tiny_llm_lab.course.learner.status",
        "next": "tiny_llm_lab.course.learner.next_task",
        "test": "tiny_llm_lab.course.run_tests",
        "watch": "tiny_llm_lab.course.learner.watch",
        "explain": "tiny_llm_lab.course.learner.explain_command",
        "hint": "tiny_llm_lab.course.learner.hint",
        "progress": "tiny_llm_lab.course.learner.progress",
        "test-ref": "tiny_llm_lab.course.run_tests",
        "diff": "tiny_llm_lab.course.learner.diff",
        "reset": "tiny_llm_lab.course.learner.reset",
        "compare": "tiny_llm_lab.course.compare.command",
        "book": "tiny_llm_lab.course.book",
    },
    "When something is wrong": {
        "doctor": "tiny_llm_lab.doctor.command",
        "report": "tiny_llm_lab.report.command",
    },
    "Look at schedules": {
        "trace": "tiny_llm_lab.trace.command",
        "simulate": "tiny_llm_lab.simulate.command",
    },
    "Measure": {
        "bench": "tiny_llm_lab.bench.throughput.command",
        "bench-serve": "tiny_llm_lab.load.command",
        "bench-chunked-prefill": "tiny_llm_lab.bench.chunked.command",
        "bench-engine": "tiny_llm_lab.bench.engine.command",
        "bench-kernels": "tiny_llm_lab.bench.kernels.command",
        "eval-recall": "tiny_llm_lab.commands.eval_recall",
    },
    "Change the course": {
        "stubs": "tiny_llm_lab.course.stubs",
        "check": "tiny_llm_lab.course.checking.check",
    },
}
COMMANDS: Final = {name: module for group in _GROUPS.values() for name, module in group.items()}
_ALIASES: Final = {"run": "main"}  # `tiny-llm run` says what it does
_NEED_CHECKOUT: Final = {*_GROUPS["The course"], *_GROUPS["Change the course"], "report"}


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Usage that fits the terminal: argparse breaks it between flags only, behind a wide indent."""

    def _format_usage(self, *parts: Any, **settings: Any) -> str:
        usage, width = super()._format_usage(*parts, **settings), shutil.get_terminal_size().columns
        if all(len(line) <= width for line in usage.splitlines()):
            return usage
        return "\n".join([*wrapped_lines(" ".join(usage.split()), width), "", ""])


class CommandParser(argparse.ArgumentParser):
    """A parser whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError with what is wrong and where the flags are listed."""
        raise UserError(f"{message}: {self.prog} --help lists the flags")

    def switches(self) -> set[str]:
        """The flags that have a --no- form."""
        pairs = (each for each in self._actions if isinstance(each, argparse.BooleanOptionalAction))
        return {flag for pair in pairs for flag in pair.option_strings if not flag.startswith("--no-")}


@handle_errors
def main(argv: list[str] | None = None) -> int:
    """Run one command; bad input is one line on stderr and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    name = argv[0] if argv else ""
    if name in ("", "-h", "--help"):
        return _list_commands()
    typed, name = name, _ALIASES.get(name, name)
    if name not in COMMANDS:
        raise UserError(f"unknown command {name!r}: {_meant(name)}")
    if name in _NEED_CHECKOUT and not has_checkout():
        raise UserError(f"{name} works on the course's files, which are not installed: clone the project")
    parser = command_parser(name, typed)
    words = _without_values(argv[1:], parser.switches())
    args, unknown = parser.parse_known_args(words, argparse.Namespace(command=name, argv=argv[1:]))
    if unknown and "handed_on" not in args:
        _refuse(unknown, parser, getattr(_load(name), "ELSEWHERE", {}))
    args.handed_on = unknown
    if getattr(args, "borrow", None):
        borrow_files(args.borrow, args.solution)
    return int(_load(name).run(args))


def _refuse(unknown: list[str], parser: CommandParser, elsewhere: dict[str, str]) -> NoReturn:
    for flag in (word.partition("=")[0] for word in unknown):
        if flag in elsewhere:
            raise UserError(f"no {flag} here: {elsewhere[flag]}")
    parser.error(f"unrecognized arguments: {' '.join(unknown)}")


def _meant(name: str) -> str:
    near = difflib.get_close_matches(name, _listed().values(), 1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{meant}{INSTALLED if program() == INSTALLED else './pdmw'} alone lists the commands"


def _without_values(argv: list[str], switches: set[str]) -> list[str]:
    """`argv` with each `--switch true` as --switch and each `--switch=false` as --no-switch."""
    words: list[str] = []
    for word in argv:
        flag, _, value = word.partition("=")
        if not value and words and words[-1] in switches:
            flag, value = words[-1], word
        if flag in switches and value.lower() in ("true", "false"):
            if word == value:
                words.pop()
            word = flag if value.lower() == "true" else f"--no-{flag[2:]}"
        words.append(word)
    return words


def command_parser(name: str, typed: str | None = None) -> CommandParser:
    """The parser of a command's flags; `typed` is another name that it was called by."""
    module, prog = _load(name), f"{program()} {typed or name}"
    pairs = getattr(module, "EXAMPLES", ())
    examples = [f"{f'  {prog} {arguments}'.rstrip()}\n      {about}" for arguments, about in pairs]
    parser = CommandParser(
        prog=prog,
        description=textwrap.fill(module.HELP, shutil.get_terminal_size().columns - 2),
        epilog="\n".join(["examples:", *examples]) if examples else None,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,  # an error names the flag that was typed
    )
    module.add_arguments(parser)
    return parser


def _load(name: str) -> ModuleType:
    # Imported on demand: a command pays only for the libraries it uses itself.
    return importlib.import_module(COMMANDS[name])


def _help_of(name: str) -> str:
    """A command's HELP, one line of its file: importing all commands takes seconds."""
    file = Path(__file__).parent.joinpath(*COMMANDS[name].split(".")[1:]).with_suffix(".py")
    [line] = (each for each in file.read_text("utf-8").splitlines() if each.startswith("HELP"))
    return str(ast.literal_eval(line.partition(" = ")[2]))


def _list_commands() -> int:
    run, listed, width = program(), _listed(), terminal_width(sys.stdout)
    room = max(map(len, listed))
    for title, names in _GROUPS.items():
        begins = {own: f"  {run} {listed[own]:<{room}}  " for own in names if own in listed}
        rows = [
            wrapped_lines(f"{start}{_help_of(own)}", width, " " * len(start)) for own, start in begins.items()
        ]
        if rows:
            print(f"{title}:", *chain.from_iterable(rows), sep="\n")
    print(f"{run} COMMAND --help lists the flags of one.")
    return 0


def _listed() -> dict[str, str]:
    """The commands that can run here, and the name that each is shown by."""
    installed = {own: alias for alias, own in _ALIASES.items()} if program() == INSTALLED else {}
    return {
        name: installed.get(name, name) for name in COMMANDS if has_checkout() or name not in _NEED_CHECKOUT
    }
