"""The catalogue of commands: a module for each, imported when the command runs, and its parser.

A command is a module with HELP, add_arguments(parser) and run(args) -> exit code. It may also have EXAMPLES,
(arguments, what they do) pairs that end its --help, and ELSEWHERE, flags of other programs that it does not
take, with what does the same here. This room imports none of them: it names them, as pyproject.toml does.
"""

import argparse
import ast
import importlib
import shutil
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

import tiny_llm_lab
from tiny_llm_lab.runtime.console.program import program
from tiny_llm_lab.runtime.console.talk import wrapped_lines
from tiny_llm_lab.types import UserError

# In the order in which a newcomer needs them: the list of commands shows these groups.
GROUPS: Final = {
    "Begin with": {
        "main": "tiny_llm_lab.cli.main",
        "batch-main": "tiny_llm_lab.cli.batch_main",
    },
    "Serve": {
        "serve": "tiny_llm_lab.serving.server.command",
        "chat": "tiny_llm_lab.serving.terminal.command",
        "cluster": "tiny_llm_lab.serving.ray_cluster.command",
        "batch": "tiny_llm_lab.serving.offline.command",
    },
    "Experiment": {
        "lab": "tiny_llm_lab.measure.labs.command",
    },
    "The course": {
        "status": "tiny_llm_lab.course.learner.status",
        "next": "tiny_llm_lab.course.learner.next_task",
        "test": "tiny_llm_lab.course.grading.run_tests",
        "watch": "tiny_llm_lab.course.learner.watch",
        "explain": "tiny_llm_lab.course.learner.explain_command",
        "hint": "tiny_llm_lab.course.learner.hint",
        "test-ref": "tiny_llm_lab.course.grading.run_tests",
        "diff": "tiny_llm_lab.course.learner.diff",
        "reset": "tiny_llm_lab.course.starter.reset",
        "compare": "tiny_llm_lab.course.compare.command",
        "drill": "tiny_llm_lab.course.drills.command",
        "book": "tiny_llm_lab.course.book.command",
    },
    "When something is wrong": {
        "doctor": "tiny_llm_lab.measure.doctor.command",
        "report": "tiny_llm_lab.measure.report.command",
    },
    "Look at schedules": {
        "trace": "tiny_llm_lab.measure.trace.command",
        "simulate": "tiny_llm_lab.measure.simulate.command",
        "tune": "tiny_llm_lab.measure.tune.command",
        "arena": "tiny_llm_lab.measure.arena.command",
        "diverge": "tiny_llm_lab.measure.diverge.command",
    },
    "Measure": {
        "bench": "tiny_llm_lab.measure.bench.throughput.command",
        "bench-serve": "tiny_llm_lab.measure.load.command",
        "bench-chunked-prefill": "tiny_llm_lab.measure.bench.chunked.command",
        "bench-engine": "tiny_llm_lab.measure.bench.engine.command",
        "bench-kernels": "tiny_llm_lab.measure.bench.kernels.command",
    },
    "Change the course": {
        "stubs": "tiny_llm_lab.course.starter.stubs",
        "check": "tiny_llm_lab.course.checking.check",
    },
}
COMMANDS: Final = {name: module for group in GROUPS.values() for name, module in group.items()}

_MAY_BE_EMPTY: Final = ("TEXT", "FLAGS")  # what a model reads, and a list


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Usage that fits the terminal; argparse breaks it only between flags, with a wide indent."""

    def _format_usage(self, *parts: Any, **settings: Any) -> str:
        usage, width = super()._format_usage(*parts, **settings), shutil.get_terminal_size().columns
        if all(len(line) <= width for line in usage.splitlines()):
            return usage
        return "\n".join([*wrapped_lines(" ".join(usage.split()), width), "", ""])


class CommandParser(argparse.ArgumentParser):
    """A parser with errors of one line."""

    def _get_values(self, action: argparse.Action, values: list[str]) -> Any:
        # Mostly a variable of a script that is not set. Path("") would be the current folder.
        if "" in values and action.metavar not in _MAY_BE_EMPTY:
            raise argparse.ArgumentError(action, "must not be empty: give a value, or leave it out")
        return super()._get_values(action, values)

    def error(self, message: str) -> NoReturn:
        """Raise UserError with what is wrong and where the flags are listed."""
        raise UserError(f"{message}: {self.prog} --help lists the flags")

    def switches(self) -> set[str]:
        """The flags that have a --no- form."""
        pairs = (each for each in self._actions if isinstance(each, argparse.BooleanOptionalAction))
        return {flag for pair in pairs for flag in pair.option_strings if not flag.startswith("--no-")}


def command_parser(name: str, typed: str | None = None) -> CommandParser:
    """The parser of a command's flags; `typed` is another name that it was called by."""
    module, prog = load_command(name), f"{program()} {typed or name}"
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


def load_command(name: str) -> ModuleType:
    # Imported on demand, so that a command loads only the libraries it uses.
    return importlib.import_module(COMMANDS[name])


def help_of(name: str) -> str:
    """A command's HELP, read from its file, because importing all commands takes seconds."""
    file = Path(tiny_llm_lab.__path__[0]).joinpath(*COMMANDS[name].split(".")[1:]).with_suffix(".py")
    [line] = (each for each in file.read_text("utf-8").splitlines() if each.startswith("HELP"))
    return str(ast.literal_eval(line.partition(" = ")[2]))
