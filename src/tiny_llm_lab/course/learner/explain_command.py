"""`explain`: which known mistake of a task fails the same tests?"""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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
from tiny_llm_lab.runtime.console.talk import log, plural, program, terminal_width, wrapped_lines
from tiny_llm_lab.types.packages import PACKAGES

HELP = "Say which known mistake of a task fails the same tests as your code."
EXAMPLES = (
    ("", "explain the task that `next` names"),
    ("1.1.2", "explain task 1.1.2"),
    ("1.3", "explain all tasks of day 1.3"),
)
_MAX_PARTIAL = 3  # the mistakes that are shown when none reproduces all failures
_MAX_LINES = 3  # of a test's own message
_LIMIT_S = 30.0  # of processor time, for trying known mistakes
# Processor time for one mistake. One that takes longer loops, and does not fail like what you have written.
_TRIAL_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "a task or a day, such as 1.1.2 or 1.1 (default: the next task)"
    parser.add_argument("task", nargs="?", metavar="TASK", help=about)
    limit = f"most seconds of processor time for trying a task's known mistakes (default: {_LIMIT_S:.0f})"
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

    Begins with what the first failed test says. Tries no more mistakes after `limit_s` seconds of
    processor time. Nothing is recorded. Raises UserError when a known mistake no longer fits the reference.
    """
    _progress(f"task {task.id}: its tests run ...")
    args = ("--solution", "mine", *course.test_files([task]), "--task", task.id)
    trial = Trial(course.root, course.starter, PACKAGES["mine"], {}, args)
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
    found = _tried(_Search(course, limit_s, trial_s), mistakes, wanted, passed)
    yield from _verdict(wanted, found)
    if len(found) < len(mistakes):
        tried = f"tried {len(found)} of {plural(len(mistakes), 'known mistake')}"
        yield f"{tried} in {limit_s:.0f} s of processor time: a larger --limit tries the others"
    if not any(fit.is_whole for fit in found):
        yield f"next: {program()} compare {task.id}, or {program()} hint {task.id}"


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


@dataclass
class _Search:
    """Tries mistakes for `limit_s` of processor time in all, each trial for `trial_s` at most."""

    course: Course
    limit_s: float
    trial_s: float
    spent_s: float = 0.0

    def failures(
        self, mistakes: Sequence[Mistake], tests: Sequence[str]
    ) -> Iterator[tuple[Mistake, dict[str, str]]]:
        """How these tests fail with each mistake, by test; for fewer mistakes where the time is up."""
        results = run_trials([mistake_trial(self.course, each, tests) for each in mistakes], self.trial_s)
        for number, mistake in enumerate(mistakes):
            if self.spent_s >= self.limit_s:
                return
            _progress(f"{number} of {plural(len(mistakes), 'known mistake')} tried ...")
            result = next(results)
            self.spent_s += self.trial_s if isinstance(result, TimeoutError) else result.cpu_s
            yield mistake, {"": TIME_LIMIT} if isinstance(result, TimeoutError) else failures(result)


def _progress(text: str) -> None:
    """On a terminal, instead of the line before."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}\r", end="", file=sys.stderr, flush=True)
    elif text:
        log(text)


def _tried(
    search: _Search, mistakes: Sequence[Mistake], wanted: Mapping[str, str], passed: Sequence[str]
) -> list[_Fit]:
    """How well each mistake fits that was tried, the best first.

    All are tried on the first failed test. Those that fail it in the same way come next, and only they if one
    of them fails all tests so.
    """
    first, *rest = wanted
    counts = {
        mistake.says: num_alike(wanted, message) for mistake, message in search.failures(mistakes, [first])
    }
    for is_alike in (True, False):
        if rest and not any(count == len(wanted) for count in counts.values()):
            group = [each for each in mistakes if counts.get(each.says) == int(is_alike)]
            for mistake, message in search.failures(group, rest):
                counts[mistake.says] += num_alike(wanted, message)
    whole = [each for each in mistakes if counts.get(each.says) == len(wanted)]
    # The first test that passes with your code and fails with the mistake is enough.
    more = search.failures(whole, ["-x", *passed]) if passed else ((each, {}) for each in whole)
    fails_more = {mistake.says: bool(message) for mistake, message in more}
    fits = [
        _Fit(says, count, is_whole=fails_more.get(says) is False, fails_more=fails_more.get(says, False))
        for says, count in counts.items()
    ]
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
