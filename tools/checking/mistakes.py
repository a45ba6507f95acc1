"""Known mistakes: wrong versions of the reference, each of which the tests of its task must reject."""

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tiny_llm_lab.course.grading.sandbox import BROKEN, LIMIT_S, TIME_LIMIT, Result, mistake_trial, run_trials
from tiny_llm_lab.course.manifest import Course, Mistake


class Verdict(enum.Enum):
    """What the tests did with a mistake."""

    CAUGHT = "caught"
    MISSED = "MISSED"
    INVALID = "INVALID"  # it does not run at all, so any test would notice


@dataclass(frozen=True)
class Finding:
    """The verdict on one mistake; `by` is the test that caught it, or the reason."""

    mistake: Mistake
    verdict: Verdict
    by: str

    def __str__(self) -> str:
        mistake = self.mistake
        return f"{self.verdict.value:<7}  {mistake.task}  {mistake.says}  ({self.by})"


def try_mistakes(course: Course, mistakes: Sequence[Mistake], limit_s: float = LIMIT_S) -> Iterator[Finding]:
    """Run the tests against each mistake, in order. Raises UserError for a stale one, before any run."""
    trials = [mistake_trial(course, mistake, _tests_of(course, mistake)) for mistake in mistakes]
    for mistake, result in zip(mistakes, run_trials(trials, limit_s), strict=True):
        yield Finding(mistake, *_judged(result))


def _tests_of(course: Course, mistake: Mistake) -> list[str]:
    task = course.task(mistake.task)
    # A task that only extends older code may be tested by its neighbours of the same day.
    tasks = course.day(task.day_id).tasks if task.grows else (task,)
    select = ["--day", task.day_id] if task.grows else ["--task", task.id]
    return [*course.test_files(tasks), "-x", *select]


def _judged(result: Result | TimeoutError) -> tuple[Verdict, str]:
    if isinstance(result, TimeoutError):
        return Verdict.CAUGHT, TIME_LIMIT
    if result.error is not None:
        return Verdict.INVALID, result.error
    if todo := result.having("todo"):
        return Verdict.INVALID, todo[0].headline
    if not result.tests:
        return Verdict.MISSED, "its task has no tests"
    failed = result.having("failed")
    if not failed:
        return Verdict.MISSED, f"{len(result.tests)} tests pass"
    if BROKEN.search(failed[0].headline):
        return Verdict.INVALID, failed[0].headline
    return Verdict.CAUGHT, failed[0].test.rpartition("::")[2]
