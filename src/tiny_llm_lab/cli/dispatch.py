"""The command line: finds the command, reads its flags, runs it, and lists the commands."""

import argparse
import sys
import tomllib
from typing import Final, NoReturn

from tiny_llm_lab.cli.commands import COMMANDS
from tiny_llm_lab.cli.endings import handle_errors
from tiny_llm_lab.runtime.checkout import has_checkout, repository
from tiny_llm_lab.runtime.console.commands import Catalogue, CommandParser
from tiny_llm_lab.runtime.console.program import INSTALLED, program
from tiny_llm_lab.runtime.console.talk import did_you_mean, terminal_width, wrapped_lines
from tiny_llm_lab.types import UserError

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
        meant = did_you_mean(name, _listed(catalogue).values())
        listing = f"{INSTALLED if program() == INSTALLED else './pdmw'} alone lists the commands"
        raise UserError(f"unknown command {name!r}: {f'{meant} {listing}'.lstrip()}")
    if name in catalogue.of_clone and not has_checkout():
        raise UserError(f"{name} needs the course's files, which are not installed: clone the project")
    parser = catalogue.parser(name, typed)
    words = _without_values(argv[1:], parser.switches())
    args, unknown = parser.parse_known_args(words, argparse.Namespace(command=name, argv=argv[1:]))
    if unknown and "handed_on" not in args:
        _refuse(unknown, parser, getattr(catalogue.load(name), "ELSEWHERE", {}))
    args.handed_on = unknown
    return int(catalogue.load(name).run(args))


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


def _list_commands(catalogue: Catalogue) -> int:
    """What the first commands do, and the names of all others."""
    run, listed, width = program(), _listed(catalogue), terminal_width()
    first = [own for own in catalogue.first if own in listed]
    room = max(len(listed[own]) for own in first)
    for own in first:
        start = f"  {run} {listed[own]:<{room}}  "
        print(*wrapped_lines(f"{start}{catalogue.help_of(own)}", width, " " * len(start)), sep="\n")
    rest = {"More": [name for own, name in listed.items() if own not in first]}
    if catalogue.others and run != INSTALLED:
        rest[catalogue.others] = [name for name in _scripts() if name not in catalogue.modules]
    for title, names in rest.items():
        if names:
            print(*wrapped_lines(f"{title}: {', '.join(names)}", width, "  "), sep="\n")
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
