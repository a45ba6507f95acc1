"""`check`: everything that CI runs, every step to the end, one line each. Slow steps need --full."""

import argparse
import importlib.util
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tiny_llm_lab.course.grading.run_tests import IN_PARALLEL, environment, pytest_command
from tiny_llm_lab.course.grading.sandbox import TIME_LIMIT
from tiny_llm_lab.course.manifest import Course, load_course
from tiny_llm_lab.course.starter.stubs import stale_files
from tiny_llm_lab.types import UserError
from tools.book import command as book
from tools.checking import audit, budget, prose, soundness
from tools.checking.chapters import chapter_faults
from tools.checking.mistakes import Verdict, try_mistakes
from tools.checking.mixes import mix_faults
from tools.checking.rebase import rebase

HELP = "Run what CI runs: lint, types, starter, tests, book, sizes; --quick leaves out what takes long."

_PYTHON = ("src", "tests", "recipes", "tools", "benchmarks")
_SHOWN_LINES = 60  # last lines of a failed tool's output
# We run these again on a machine that says it has a GPU: they switch kernels on, or ask for the device.
_ON_A_GPU = (
    *("tests/kernels", "tests/week_2", "tests/test_default_engine.py"),
    # Where a CPU computes in 32 bits a GPU's own operator is exact enough, and here that operator is a CPU's.
    *("-k", "not test_quantized_linear_of_16_bits"),
)

# The thread sanitizer sees a missing fence at once, and on x86 nothing else does.
_THREADS = ("--isa", "plain", "--sanitizer", "thread", "--calls", "100")


@dataclass(frozen=True)
class Step:
    """A step of `check`: what is true if it passes, and the function that finds out."""

    says: str
    complaints: Callable[[Course, argparse.Namespace], Iterable[str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    steps = "; ".join(f"{name}: {step.says}" for name, step in STEPS.items())
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", nargs="+", choices=list(STEPS), metavar="STEP", help=steps)
    which.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK_STEPS)}: a minute")
    parser.add_argument("--full", action="store_true", help=f"all tests, and also {', '.join(LONG_STEPS)}")
    parser.add_argument("--no-tests", action="store_true", help="skip the quick tests, after test-ref")
    parser.add_argument("--task", help="try only this task's known mistakes, and list them all")
    parser.add_argument("--day", metavar="W.D", help="of chapters only this day")
    parser.add_argument("--mixes", type=int, metavar="N", help="number of mixes (default: one a day)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the mixes")
    about = "run nothing; fix known mistakes whose code has moved"
    parser.add_argument("--rebase", action="store_true", help=about)


def run(args: argparse.Namespace) -> int:
    """Run the steps; a step without complaints passes."""
    course = load_course()
    if args.task is not None:
        course.task(args.task)
    if args.day is not None:
        course.day(args.day)
    if args.mixes is not None and args.mixes < 1:
        raise UserError(f"--mixes {args.mixes}: choose 1 or more")
    if args.rebase:
        said = list(rebase(course))
        print("\n".join(said) or "all known mistakes still fit")
        return 1 if any(line.startswith("left") for line in said) else 0
    failed = [name for name in _wanted(args) if not _passes(name, course, args)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _wanted(args: argparse.Namespace) -> list[str]:
    if args.only:
        return list(args.only)
    if args.quick:
        return list(QUICK_STEPS)
    if args.task is not None:
        return ["mistakes"]
    left_out = [*(() if args.full else LONG_STEPS), *(["tests"] if args.no_tests else [])]
    return [name for name in STEPS if name not in left_out]


def _passes(name: str, course: Course, args: argparse.Namespace) -> bool:
    start_s = time.perf_counter()
    try:
        complaints = list(STEPS[name].complaints(course, args))
    except UserError as error:
        complaints = [str(error)]
    duration_s = time.perf_counter() - start_s
    print(f"{'FAILED' if complaints else 'ok':<6}  {name:<15}  {duration_s:6.1f} s", flush=True)
    for line in complaints:
        print(f"        {line}", flush=True)
    return not complaints


def _mistakes(course: Course, args: argparse.Namespace) -> Iterable[str]:
    counts: Counter[str] = Counter()
    for finding in try_mistakes(course, [m for m in course.mistakes() if args.task in (None, m.task)]):
        counts[finding.verdict.value] += 1
        if finding.verdict is not Verdict.CAUGHT:
            yield str(finding)
        elif args.task is not None or finding.by == TIME_LIMIT:
            # We say so, because it costs time and a slow machine may be the reason.
            print(finding)
    print(", ".join(f"{num} {verdict}" for verdict, num in counts.items()) or "no known mistakes")


def _pytest(course: Course, *args: str) -> Iterable[str]:
    return _output_of_failure(course, [*pytest_command("ref"), *IN_PARALLEL, "-q", "--color=no", *args])


def _program(course: Course, *args: str) -> Iterable[str]:
    return _output_of_failure(course, [sys.executable, *args])


def _tool(course: Course, module: str, *args: str) -> Iterable[str]:
    if importlib.util.find_spec(module) is None:
        return [f"{module} is not installed: run ./pdmw install for the development tools"]
    return _program(course, "-m", module, *args)


def _format(course: Course, args: argparse.Namespace) -> Iterable[str]:
    yield from _tool(course, "ruff", "format", "--check", *_PYTHON)
    sources = [
        str(path)
        for folder in _PYTHON
        for pattern in ("*.cpp", "*.h")
        for path in sorted((course.root / folder).rglob(pattern))
        if not path.is_relative_to(course.starter)
    ]
    program = Path(sys.executable).with_name("clang-format")
    yield from _output_of_failure(course, [str(program), "--dry-run", "--Werror", *sources])


def _output_of_failure(course: Course, command: list[str]) -> list[str]:
    done = subprocess.run(command, cwd=course.root, env=environment(), capture_output=True, text=True)
    if done.returncode == 0:
        return []
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return lines[-_SHOWN_LINES:] or [f"exit code {done.returncode}"]


STEPS: dict[str, Step] = {
    "ruff": Step("lint", lambda course, _: _tool(course, "ruff", "check", *_PYTHON)),
    "format": Step("Python and C++ are formatted", _format),
    "mypy": Step("types", lambda course, _: _tool(course, "mypy", "-n", "2")),
    "imports": Step(
        "packages and rooms import in one direction only",
        lambda course, _: _program(
            course, "-c", "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
        ),
    ),
    "stubs": Step(
        "the starter matches the reference",
        lambda course, _: (f"src/tiny_llm/{name} is stale: ./pdmw run stubs" for name in stale_files(course)),
    ),
    "manifest": Step(
        "course.toml names existing code, and each known mistake changes code",
        lambda course, _: audit.complaints(course),
    ),
    "starter": Step(
        "every test of the starter is a TODO", lambda course, _: soundness.starter_faults(course)
    ),
    "chapters": Step(
        "each day's first task, with --full every task, passes as many tests as its page says, no later code",
        lambda course, args: chapter_faults(course, args.day, not (args.full or args.day)),
    ),
    "tests": Step(
        "the quick tests on the reference, with --full all of them",
        lambda course, args: _pytest(course, *(["--full"] if args.full else [])),
    ),
    "gpu": Step(
        "the model's tests on a machine that claims to have a GPU",
        lambda course, _: _pytest(course, "-p", "tests.helpers.claims_gpu", *_ON_A_GPU),
    ),
    "threads": Step(
        "the kernels under the thread sanitizer",
        lambda course, _: _program(course, "tests/kernels/sanitize.py", *_THREADS),
    ),
    "book": Step("links, commands, samples and figures of the book", lambda course, _: book.problems(course)),
    "prose": Step(
        "no page has more of the turns in prose.toml than before, or more words than it allows",
        lambda course, _: prose.complaints(course.root),
    ),
    "spelling": Step("spelling of the pages and the code", lambda course, _: _tool(course, "codespell_lib")),
    "lines": Step(
        "files and functions are small, and the project stays in its budget",
        lambda course, _: budget.over_budget(course.root),
    ),
    "mixes": Step(
        "a day passes after any mix of own, given and half-written days",
        lambda course, args: mix_faults(course, args.mixes or len(course.days), args.seed),
    ),
    "mistakes": Step("the tests catch each known mistake of the course", _mistakes),
    "kernel-mistakes": Step(
        "the tests catch each known mistake of the C++ kernels",
        lambda course, _: _program(course, "tests/kernels/mistakes.py"),
    ),
    "for-mac": Step(
        "the Mac's C++ compiles and links; needs the package registry",
        lambda course, _: _program(course, "-m", "tools.checking.for_mac"),
    ),
}
# What takes less than a minute, before each commit.
QUICK_STEPS = ("ruff", "format", "mypy", "imports", "stubs", "manifest", "prose", "lines")
LONG_STEPS = ("mixes", "mistakes", "kernel-mistakes", "for-mac")
