"""`test` grades the learner's package, `test-ref` the reference: pytest with the course's plugin."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tiny_llm_lab.course.manifest import load_course

HELP = "Grade src/tiny_llm (test) or the reference (test-ref): one week, one day, or all of it."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--week", type=int, help="only this week")
    parser.add_argument("--day", help="only this day of the week (or --day 2.7)")
    parser.add_argument("--task", help="only this task, as in --task 2.7.3")
    parser.add_argument(
        "pytest_args", nargs="*", metavar="-- pytest arguments", help="handed on, as in `-- -k rope -x`"
    )


def run(args: argparse.Namespace) -> int:
    course = load_course()
    wanted = course.select(args.week, args.day, args.task)  # tells what does not exist before pytest starts
    command = pytest_command("ref" if args.command == "test-ref" else "mine")
    if args.command == "test" or wanted is not None:
        command += ["--ignore", "tests/lab"]  # marked with no task: collecting them would only take time
    for option in ("week", "day", "task"):
        value = getattr(args, option)
        if value is not None:
            command += [f"--{option}", str(value)]
    return subprocess.run([*command, *args.pytest_args], cwd=course.root, env=environment()).returncode


def pytest_command(solution: str) -> list[str]:
    """pytest on the repository's tests; naming the plugin twice (pyproject.toml does too) is harmless."""
    return [sys.executable, "-m", "pytest", "-p", "tiny_llm_lab.course.plugin", "--solution", solution]


def environment() -> dict[str, str]:
    # The packages are found whether or not the project is installed, and from any directory.
    source = str(Path(__file__).resolve().parents[2])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
