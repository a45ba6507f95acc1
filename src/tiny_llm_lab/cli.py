"""The command line. A command is a module with HELP, add_arguments(parser) and run(args) -> exit code."""

import argparse
import importlib
import sys
from types import ModuleType

from tiny_llm_lab.types import UserError

COMMANDS = {
    "main": "tiny_llm_lab.commands.main",
    "batch-main": "tiny_llm_lab.commands.batch_main",
    "eval-recall": "tiny_llm_lab.commands.eval_recall",
    "bench": "tiny_llm_lab.bench.engine",
    "bench-chunked-prefill": "tiny_llm_lab.bench.chunked_prefill",
    "bench-kernels": "tiny_llm_lab.bench.kernels",
    "bench-engine": "tiny_llm_lab.bench.engine_steps.command",
    "simulate": "tiny_llm_lab.simulate.command",
    "trace": "tiny_llm_lab.timeline.command",
    "test": "tiny_llm_lab.course.run_tests",
    "test-ref": "tiny_llm_lab.course.run_tests",
    "check": "tiny_llm_lab.course.checking.check",
    "stubs": "tiny_llm_lab.course.stubs",
    "book": "tiny_llm_lab.course.book",
}

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Run one command; bad input is one line on stderr and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    name = argv[0] if argv else ""
    if name not in COMMANDS:
        return _usage(name)
    module = _load(name)
    parser = argparse.ArgumentParser(prog=name, description=module.HELP)
    module.add_arguments(parser)
    args, unknown = parser.parse_known_args(argv[1:], argparse.Namespace(command=name, argv=argv[1:]))
    if unknown and "handed_on" not in args:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    args.handed_on = unknown
    try:
        return int(module.run(args))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _load(name: str) -> ModuleType:
    # Imported on demand: a command pays only for the libraries it uses itself.
    return importlib.import_module(COMMANDS[name])


def _usage(name: str) -> int:
    asked_for_help = name in ("", "-h", "--help")
    if not asked_for_help:
        print(f"error: unknown command {name!r}: choose one of {', '.join(COMMANDS)}", file=sys.stderr)
        return EXIT_USAGE
    width = max(map(len, COMMANDS))
    for command in COMMANDS:
        print(f"{command:<{width}}  {_load(command).HELP.splitlines()[0]}")
    return 0
