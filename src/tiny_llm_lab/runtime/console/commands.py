"""A catalogue of commands: a module for each, imported when the command runs, and its parser.

A command is a module with HELP, add_arguments(parser) and run(args) -> exit code. It may also have EXAMPLES,
(arguments, what they do) pairs that end its --help, ELSEWHERE, flags of other programs that it does not take,
with what does the same here, and FIRST_FLAGS, those that --help lists; --help-all then lists all.
"""

import argparse
import ast
import importlib
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

from tiny_llm_lab.runtime.console.talk import program, wrapped_lines
from tiny_llm_lab.types import UserError

_MAY_BE_EMPTY: Final = ("TEXT", "FLAGS")  # what a model reads, and a list
_ALL: Final = "--help-all"


@dataclass(frozen=True)
class Catalogue:
    """The commands of a package: the module of each, by name, in the order in which a newcomer needs them."""

    modules: Mapping[str, str]
    first: Sequence[str]  # the list of commands says what these do, and only names the others
    of_clone: frozenset[str] = frozenset()  # need the course's files, which the wheel lacks
    others: str = (
        ""  # the title of what else a clone has: scripts of pyproject.toml that are not in `modules`
    )

    def __iter__(self) -> Iterator[str]:
        return iter(self.modules)

    def load(self, name: str) -> ModuleType:
        """The module of a command. Imported on demand: a command loads only the libraries it uses."""
        return importlib.import_module(self.modules[name])

    def parser(self, name: str, typed: str | None = None) -> "CommandParser":
        """The parser of a command's flags; `typed` is another name that it was called by."""
        module, prog = self.load(name), f"{program()} {typed or name}"
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
        parser.shorten(getattr(module, "FIRST_FLAGS", ()))
        return parser

    def help_of(self, name: str) -> str:
        """A command's HELP, read from its file, because importing all commands takes seconds."""
        package, *parts = self.modules[name].split(".")
        folder = Path(importlib.import_module(package).__path__[0])
        text = folder.joinpath(*parts).with_suffix(".py").read_text("utf-8")
        [line] = (each for each in text.splitlines() if each.startswith("HELP"))
        return str(ast.literal_eval(line.partition(" = ")[2]))


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Usage that fits the terminal; argparse breaks it only between flags, with a wide indent."""

    def _format_usage(self, *parts: Any, **settings: Any) -> str:
        usage, width = super()._format_usage(*parts, **settings), shutil.get_terminal_size().columns
        if all(len(line) <= width for line in usage.splitlines()):
            return usage
        return "\n".join([*wrapped_lines(" ".join(usage.split()), width), "", ""])


class CommandParser(argparse.ArgumentParser):
    """A parser with errors of one line, and a shorter --help where a command has many flags."""

    _first: Sequence[str] = ()

    def shorten(self, first: Sequence[str]) -> None:
        """Let --help list these flags only, and --help-all every flag; does nothing without any."""
        if first:
            self._first = ("--help", _ALL, *first)
            about = f"list all {sum(bool(each.option_strings) for each in self._actions)} flags"
            hidden = argparse.SUPPRESS
            self.add_argument(_ALL, action=_HelpAll, nargs=0, help=about, dest="help", default=hidden)

    @property
    def flags(self) -> list[str]:
        """Every flag."""
        return [flag for action in self._actions for flag in action.option_strings]

    def format_help(self) -> str:
        """What --help prints."""
        if not self._first:
            return super().format_help()
        hidden = {
            action: action.help
            for action in self._actions
            if action.option_strings and not set(action.option_strings) & set(self._first)
        }
        for action in hidden:
            action.help = argparse.SUPPRESS
        try:
            return super().format_help()
        finally:
            for action, about in hidden.items():
                action.help = about

    def format_full_help(self) -> str:
        """What --help-all prints."""
        return super().format_help()

    def _get_values(self, action: argparse.Action, values: list[str]) -> Any:
        # Mostly a variable of a script that is not set. Path("") would be the current folder.
        if "" in values and action.metavar not in _MAY_BE_EMPTY:
            raise argparse.ArgumentError(action, "must not be empty: give a value, or leave it out")
        return super()._get_values(action, values)

    def error(self, message: str) -> NoReturn:
        """Raise UserError with what is wrong and where the flags are listed."""
        raise UserError(f"{message}: {self.prog} {_ALL if self._first else '--help'} lists the flags")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse, which it also calls from `parse_args`; a switch may have a value too."""
        return super().parse_known_args(self._without_values(args or ()), namespace)

    def _without_values(self, argv: Sequence[str]) -> list[str]:
        """`argv` with each `--switch true` as --switch and each `--switch=false` as --no-switch."""
        pairs = (each for each in self._actions if isinstance(each, argparse.BooleanOptionalAction))
        switches = {flag for pair in pairs for flag in pair.option_strings if not flag.startswith("--no-")}
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


class _HelpAll(argparse.Action):
    """Prints every flag and ends the program, as --help does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        assert isinstance(parser, CommandParser)
        print(parser.format_full_help(), end="")
        parser.exit()
