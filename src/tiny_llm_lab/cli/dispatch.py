"""The command line: finds the command, reads its flags, runs it, and lists the commands."""

import argparse
import sys
from itertools import chain
from typing import Final, NoReturn

from tiny_llm_lab.cli.endings import handle_errors
from tiny_llm_lab.runtime.checkout import has_checkout
from tiny_llm_lab.runtime.console.commands import (
    COMMANDS,
    GROUPS,
    CommandParser,
    command_parser,
    help_of,
    load_command,
)
from tiny_llm_lab.runtime.console.program import INSTALLED, program
from tiny_llm_lab.runtime.console.talk import did_you_mean, terminal_width, wrapped_lines
from tiny_llm_lab.types import UserError

_ALIASES: Final = {"run": "main"}  # for somebody new "run" says more than "main"
_NEED_CHECKOUT: Final = {*GROUPS["The course"], *GROUPS["Change the course"], "report"}


@handle_errors
def main(argv: list[str] | None = None) -> int:
    """Run one command; bad input is one line on stderr and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    name = argv[0] if argv else ""
    if name in ("", "-h", "--help"):
        return _list_commands()
    typed, name = name, _ALIASES.get(name, name)
    if name not in COMMANDS:
        meant = did_you_mean(name, _listed().values())
        listing = f"{INSTALLED if program() == INSTALLED else './pdmw'} alone lists the commands"
        raise UserError(f"unknown command {name!r}: {f'{meant} {listing}'.lstrip()}")
    if name in _NEED_CHECKOUT and not has_checkout():
        raise UserError(f"{name} needs the course's files, which are not installed: clone the project")
    parser = command_parser(name, typed)
    words = _without_values(argv[1:], parser.switches())
    args, unknown = parser.parse_known_args(words, argparse.Namespace(command=name, argv=argv[1:]))
    if unknown and "handed_on" not in args:
        _refuse(unknown, parser, getattr(load_command(name), "ELSEWHERE", {}))
    args.handed_on = unknown
    return int(load_command(name).run(args))


def _refuse(unknown: list[str], parser: CommandParser, elsewhere: dict[str, str]) -> NoReturn:
    for flag in (word.partition("=")[0] for word in unknown):
        if flag in elsewhere:
            raise UserError(f"there is no {flag} here: {elsewhere[flag]}")
    parser.error(f"unrecognized arguments: {' '.join(unknown)}")


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


def _list_commands() -> int:
    run, listed, width = program(), _listed(), terminal_width()
    room = max(map(len, listed))
    for title, names in GROUPS.items():
        begins = {own: f"  {run} {listed[own]:<{room}}  " for own in names if own in listed}
        rows = [
            wrapped_lines(f"{start}{help_of(own)}", width, " " * len(start)) for own, start in begins.items()
        ]
        if rows:
            print(f"{title}:", *chain.from_iterable(rows), sep="\n")
    print(f"{run} COMMAND --help lists the flags of a command.")
    return 0


def _listed() -> dict[str, str]:
    """The commands that can run here, and the name that each is shown by."""
    installed = {own: alias for alias, own in _ALIASES.items()} if program() == INSTALLED else {}
    return {
        name: installed.get(name, name) for name in COMMANDS if has_checkout() or name not in _NEED_CHECKOUT
    }
