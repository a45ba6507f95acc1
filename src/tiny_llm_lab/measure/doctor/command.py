"""`doctor`: what runs on this machine, whether it is right, and how to fix it if it is not."""

import json
import textwrap
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

from tiny_llm_lab.measure.bench.fresh import run_fresh
from tiny_llm_lab.measure.doctor import machine
from tiny_llm_lab.measure.doctor.machine import Examination, Finding, findings_of, without_home
from tiny_llm_lab.runtime.cache import cache_folder
from tiny_llm_lab.runtime.console.talk import EXIT_FAILED, CrashError, terminal_width

HELP = "Check this machine, its kernels and the default model; every line has a ✓, or a ✗ with the cure."
_WIDTH: Final = 80
_NAMES: Final = 15  # columns, mark included


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the lines")


def run(args: Namespace) -> int:
    results = [each for name, examine in _EXAMINATIONS.items() for each in findings_of(name, examine)]
    if args.json:
        print(json.dumps({"is_right": is_right(results), "findings": [asdict(each) for each in results]}))
    else:
        width = min(_WIDTH, terminal_width() or _WIDTH)
        print(*(line for each in results for line in lines_of(each, width)), sep="\n")
    return 0 if is_right(results) else EXIT_FAILED


def _computed() -> Iterator[Finding]:
    """The checks that need kernels, in a process of their own, because damaged kernels may crash it."""
    try:
        yield from run_fresh(machine.examine, None)
    except CrashError as error:
        says = f"the process that tried them crashed ({str(error).splitlines()[-1]})"
        cure = f"delete {cache_folder() / 'native'}, then try again; if it still crashes, open an issue"
        yield Finding("kernels", False, without_home(says), without_home(cure))


def is_right(found: Sequence[Finding]) -> bool:
    """Whether there is nothing to fix."""
    return all(each.is_right for each in found)


def lines_of(finding: Finding, width: int) -> list[str]:
    """The mark, the name and the finding; below it the cure, if there is one."""
    head = f"{'✓' if finding.is_right else '✗'} {finding.name}".ljust(_NAMES) + " "
    lines = textwrap.wrap(head + finding.says, width, subsequent_indent=" " * len(head))
    if finding.cure and not finding.is_right:
        indent = " " * len(head)
        lines += textwrap.wrap(
            f"{indent}→ {finding.cure}", width, subsequent_indent=indent + "  ", break_on_hyphens=False
        )
    return lines


_EXAMINATIONS: Final[dict[str, Examination]] = {
    "system": machine.system,
    "memory": machine.memory,
    "versions": machine.versions,
    "compiler": machine.cpp_compiler,
    "instructions": machine.instruction_set,
    "caches": machine.caches,
    "kernels": _computed,
}
