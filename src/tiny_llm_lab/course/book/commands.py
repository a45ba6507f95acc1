"""docs/commands.md: every command with its flags, from the commands' own parsers."""

import argparse
import importlib
import re
from collections.abc import Iterator

from tiny_llm_lab.runtime.console.commands import COMMANDS, command_parser

_LISTED = re.compile(r"(<!-- commands -->\n).*(<!-- end of commands -->)", re.DOTALL)


def with_commands(text: str) -> str:
    """A page with every command and its flags between `<!-- commands -->` and `<!-- end of commands -->`."""
    return _LISTED.sub(lambda match: "\n".join([match[1], *map(_section, COMMANDS), match[2]]), text)


def _section(name: str) -> str:
    module, parser = importlib.import_module(COMMANDS[name]), command_parser(name)
    rows = list(_rows(parser))
    table = ["| flag | meaning |\n| --- | --- |", *rows, ""] if rows else []
    examples = [f"- `./pdmw run {name} {line}`: {about}" for line, about in getattr(module, "EXAMPLES", ())]
    return "\n".join([f"## {name}\n", f"{module.HELP}\n", *table, *([*examples, ""] if examples else [])])


def _rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:  # argparse has no public way to list them
        if argparse.SUPPRESS in (action.help, action.dest) or action.dest == "help":
            continue
        flags = [f"`{flag}`" for flag in action.option_strings]
        names = ", ".join(flags) or f"`{action.metavar or action.dest}`"
        values = "" if action.nargs == 0 or not flags else f" {_values(action)}"
        text = (action.help or "") % {**vars(action), "prog": parser.prog}
        if "--threads" in action.option_strings:  # the one default that is another on every machine
            text = text.replace(f"default: {action.default})", "default: one a core)")
        yield f"| {names}{values} | {text.replace('|', chr(92) + '|')} |"


def _values(action: argparse.Action) -> str:
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    if action.metavar is not None or action.choices is None:
        return action.metavar or action.dest.upper()
    return " or ".join(f"`{choice}`" for choice in action.choices)
