"""`read-log`: what each line of a server's log says, and what to do about it."""

import re
import tomllib
from argparse import ArgumentParser, Namespace
from collections import Counter
from pathlib import Path
from typing import Final

from tiny_llm_lab.runtime.console.input_file import read_text
from tiny_llm_lab.runtime.console.tables import print_lines, stdout_console
from tiny_llm_lab.runtime.console.talk import EXIT_FAILED, harmless, log, plural

_KNOWN: Final = tomllib.loads((Path(__file__).parent / "lines.toml").read_text(encoding="utf-8"))["line"]
HELP: Final = "Say what each line of a server's log means, ours or vLLM's, and what to change."
EXAMPLES: Final = (("vllm.log", "explain the lines that we know, each once with how often it came"),)


def explained(line: str) -> list[str]:
    """What we know about a line of a log, with its own numbers in it."""
    found = [(each["says"], re.search(each["has"], line)) for each in _KNOWN]
    return [says.format(*match.groups()) for says, match in found if match]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the log; - reads stdin")


def run(args: Namespace) -> int:
    lines = read_text(args.file).splitlines()
    known = Counter(said for line in lines for said in explained(line))
    print_lines(stdout_console(), (harmless(f"{num:5} × {said}") for said, num in known.items()))
    log(f"{plural(len(lines), 'line')}, {sum(not explained(line) for line in lines)} that we don't know")
    return 0 if known else EXIT_FAILED
