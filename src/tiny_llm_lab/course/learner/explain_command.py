"""`explain`: which known mistake of a task fails the same tests?"""

import argparse
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tiny_llm_lab.course.grading.sandbox import (
    BROKEN,
    LIMIT_S,
    TIME_LIMIT,
    Result,
    Trial,
    mistake_trial,
    run_trials,
)
from tiny_llm_lab.course.manifest import Course, Mistake, Task
from tiny_llm_lab.course.record.standing import open_desk
from tiny_llm_lab.runtime.console.program import program
from tiny_llm_lab.runtime.console.talk import log, plural, terminal_width, wrapped_lines
from tiny_llm_lab.types.packages import PACKAGES

HELP = "Say which known mistake of a task fails the same tests as your code."
EXAMPLES = (
    ("", "explain the task that `next` names"),
    ("1.1.2", "explain task 1.1.2"),
    ("1.3", "explain all tasks of day 1.3"),
)
_MAX_PARTIAL = 3  # the mistakes that are shown when none reproduces all failures
_MAX_LINES = 3  # of a test's own message
_LIMIT_S = 30.0  # for trying known mistakes
# Processor time for one mistake. One that takes longer loops, and does not fail like what you have written.
_TRIAL_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "a task or a day, such as 1.1.2 or 1.1 (default: the next task)"
    parser.add_argument("task", nargs="?", metavar="TASK", help=about)
    limit = f"most seconds for trying the known mistakes of a task (default: {_LIMIT_S:.0f})"
    parser.add_argument("--limit", type=float, default=_LIMIT_S, metavar="S", help=limit)


def run(args: argparse.Namespace) -> int:
    desk = open_desk()
    asked = desk.course.tasks_of(args.task) if args.task else [desk.task_or_next(None, "explain 2.2.3")]
    for task in asked:
        print(f"{task.id} {task.title}")
        for line in explanation(desk.course, task, args.limit):
            _progress("")
            print("\n".join(wrapped_lines(f"  {line}", terminal_width(), "    ")), flush=True)
    return 0


def explanation(course: Course, task: Task, limit_s: float = _LIMIT_S) -> Iterator[str]:
    """The results of a task's tests on src/tiny_llm, and the known mistakes that fail the same way.

    Begins with what the first failed test says. Tries no more mistakes after `limit_s` seconds. Nothing is
    recorded. Raises UserError when a known mistake no longer fits the reference.
    """
    _progress(f"task {task.id}: its tests run ...")
    trial = Trial(course.root, course.starter, PACKAGES["mine"], {}, _pytest_args(course, task))
    (result,) = run_trials([trial])
    if isinstance(result, TimeoutError):
        yield f"its tests take more than {LIMIT_S:.0f} s of processor time: check for a loop that never ends"
        return
    wanted = failures(result)
    if not wanted:
        yield _without_failures(result)
        return
    first = comparable(result.having("failed")[0].message).splitlines()[:_MAX_LINES]
    yield "\n  ".join([f"{plural(len(wanted), 'test')} failed. The first says: {first[0]}", *first[1:]])
    mistakes = [mistake for mistake in course.mistakes() if mistake.task == task.id]
    if all(map(BROKEN.search, wanted.values())):
        yield "no known mistake fails like this: your code does not run to its end, and `test` shows where"
        return
    passed = [test.test for test in result.having("passed")]
    trial_s = LIMIT_S if task.kernel else _TRIAL_S  # which compiles
    found = _tried(_Search(course, time.monotonic() + limit_s, trial_s), mistakes, wanted, passed)
    yield from _verdict(wanted, found)
    if len(found) < len(mistakes):
        tried = f"tried {len(found)} of {plural(len(mistakes), 'known mistake')} in {limit_s:.0f} s"
        yield f"{tried}: a larger --limit tries the others"
    if not any(fit.is_whole for fit in found):
        yield f"next: {program()} compare {task.id}, or {program()} hint {task.id}"


def _pytest_args(course: Course, task: Task) -> tuple[str, ...]:
    return ("--solution", "mine", *course.test_files([task]), "--task", task.id)


def _without_failures(result: Result) -> str:
    if result.error is not None:
        return f"cannot run its tests: {result.error}"
    if todo := result.having("todo"):
        return f"{plural(len(todo), 'test')} reached code that is still to write: {program()} next says where"
    if passed := result.having("passed"):
        return f"{plural(len(passed), 'test')} passed: there is nothing to explain"
    return "none of its tests can run on this machine"


@dataclass(frozen=True)
class _Fit:
    """How many of the learner's failures a known mistake reproduces, and whether it fails more than those."""

    says: str
    num_alike: int
    is_whole: bool  # it fails the same tests in the same way, and no others
    fails_more: bool = False  # tests that passed


@dataclass(frozen=True)
class _Search:
    """Tries mistakes until the time `end_s`, each for `trial_s` of processor time."""

    course: Course
    end_s: float  # of time.monotonic
    trial_s: float

    def failures(self, mistakes: Sequence[Mistake], tests: Sequence[str]) -> Iterator[dict[str, str]]:
        """How these tests fail with each mistake, by test; for fewer mistakes where the time is up."""
        results = run_trials([mistake_trial(self.course, each, tests) for each in mistakes], self.trial_s)
        for number in range(len(mistakes)):
            if time.monotonic() >= self.end_s:
                return
            _progress(f"{number} of {plural(len(mistakes), 'known mistake')} tried ...")
            result = next(results)
            yield {"": TIME_LIMIT} if isinstance(result, TimeoutError) else failures(result)


def _progress(text: str) -> None:
    """On a terminal, instead of the line before."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}\r", end="", file=sys.stderr, flush=True)
    elif text:
        log(text)


def _tried(
    search: _Search, mistakes: Sequence[Mistake], wanted: Mapping[str, str], passed: Sequence[str]
) -> list[_Fit]:
    """How well each mistake fits that was tried, the best first."""
    fits = []
    for mistake, message in zip(mistakes, search.failures(mistakes, list(wanted)), strict=False):
        count = num_alike(wanted, message)
        fits.append(_Fit(mistake.says, count, is_whole=count == len(wanted) and not passed))
    whole = [i for i, fit in enumerate(fits) if passed and fit.num_alike == len(wanted)]
    if whole:
        more = search.failures([mistakes[i] for i in whole], passed)
        for i, message in zip(whole, more, strict=False):
            fits[i] = replace(fits[i], is_whole=not message, fails_more=bool(message))
    return sorted(fits, key=lambda fit: (-fit.is_whole, -fit.num_alike))


def _verdict(wanted: Mapping[str, str], found: Sequence[_Fit]) -> Iterator[str]:
    whole = [fit.says for fit in found if fit.is_whole]
    partial = [fit for fit in found if fit.num_alike]
    if len(whole) == 1:
        yield f"they fail in the same way when {whole[0]}"
    elif whole:
        yield "they fail in the same way with each of these mistakes, and cannot tell them apart:"
        yield from (f"- {says}" for says in whole)
    elif partial:
        for fit in partial[:_MAX_PARTIAL]:
            look = "fails" if fit.num_alike == 1 else "fail"
            more = "; but that also fails tests that pass with your code" if fit.fails_more else ""
            yield f"{fit.num_alike} of {plural(len(wanted), 'failed test')} {look} as when {fit.says}{more}"
    else:
        yield f"none fails as with any of the {plural(len(found), 'known mistake')} that were tried"


def failures(result: Result) -> dict[str, str]:
    """The comparable message of each failed test."""
    return {each.test: comparable(each.message) for each in result.having("failed")}


def num_alike(wanted: Mapping[str, str], found: Mapping[str, str]) -> int:
    """How many of the tests in `wanted` fail with the same message in `found`."""
    return sum(found.get(test) == message for test, message in wanted.items())


def comparable(message: str) -> str:
    """A message without the names, paths and addresses that differ between packages or runs."""
    values = [line for line in message.splitlines() if not re.match(r"\s*\+\s+where ", line)]
    return re.sub(r"0x[0-9a-f]+", "0x", "\n".join(values).replace(PACKAGES["ref"], PACKAGES["mine"]))
