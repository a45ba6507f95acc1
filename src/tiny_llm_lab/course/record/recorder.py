"""A graded run: records how each task's tests ended; shows each error once, then the next task."""

import importlib.util
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

import pytest

from tiny_llm_lab.course.grading.grading import Selection, reporter_width, write_line
from tiny_llm_lab.course.manifest import Course, Task
from tiny_llm_lab.course.record.record import Outcome, TaskSources, load_record, save_record
from tiny_llm_lab.course.record.standing import Desk, State, chapter_of, end_of_week, open_desk, standing
from tiny_llm_lab.runtime.console.tables import part_lines
from tiny_llm_lab.runtime.console.talk import plural
from tiny_llm_lab.types.packages import PACKAGES

# The worst phase of a test counts.
_RANKS: Final = ("passed", "skipped", "todo", "failed")


def _now() -> datetime:
    return datetime.now().astimezone()


class Recorder:
    """A pytest plugin of the process that reports; `now` tells the time that is noted."""

    def __init__(
        self, config: pytest.Config, selection: Selection, now: Callable[[], datetime] = _now
    ) -> None:
        self._config, self._selection, self._now = config, selection, now
        self._tests: dict[str, tuple[str, str]] = {}  # by test, its task and how it ended
        self._complaint = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        task = getattr(report, "of_task", None)
        if task is not None:
            ended = "todo" if hasattr(report, "todo") else str(report.outcome)
            before = self._tests.get(report.nodeid, (task, _RANKS[0]))[1]
            # The call decides: a setup that passed says nothing yet.
            if report.when != "setup" or ended != "passed":
                self._tests[report.nodeid] = task, max(before, ended, key=_RANKS.index)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        outcomes = self.outcomes()
        if outcomes:
            root = self._selection.course.root
            record, self._complaint = load_record(root)
            try:
                save_record(root, record.with_outcomes(outcomes))
            except OSError as error:
                self._complaint = f"cannot record the results: {error}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._complaint:
            terminalreporter.line(self._complaint)

    def outcomes(self) -> dict[str, Outcome]:
        """How each task ended that this run tested, by its id."""
        course, sources = self._selection.course, TaskSources(self._selection.course)
        at = self._now().isoformat(timespec="seconds")
        ended: dict[str, Counter[str]] = {}
        for task, how in self._tests.values():
            ended.setdefault(task, Counter())[how] += 1
        return {
            task: Outcome(
                passed=counts["passed"],
                failed=counts["failed"],
                todo=counts["todo"],
                ran_all=self._has_all_files(task) and counts.total() == self._selection.num_tests[task],
                source=sources.hash_of(course.task(task)),
                at=at,
            )
            for task, counts in ended.items()
        }

    def _has_all_files(self, task: str) -> bool:
        """Whether pytest was given all files of a task's tests, whole."""
        if self._config.getoption("lf", False):
            return False  # it leaves out files before their tests are counted
        where = self._config.invocation_params.dir
        given = [where / arg for arg in self._config.args if "::" not in arg]
        course = self._selection.course
        return all(
            any((course.root / path).is_relative_to(each) for each in given)
            for path in course.test_files([course.task(task)])
        )


def is_learners(course: Course, solution: str) -> bool:
    """Whether a run grades the learner's package of this clone, and not another or a copy of it."""
    spec = importlib.util.find_spec(PACKAGES[solution])
    return spec is not None and spec.origin is not None and Path(spec.origin).parent == course.starter


def unasked_bonus(course: Course, wanted: Collection[Task] | None) -> list[Task]:
    """The bonus tasks to do among those wanted, on a path without them, unless only such are wanted."""
    asked = course.tasks if wanted is None else wanted
    now = standing(course, load_record(course.root)[0])
    bonus = [task for task in course.tasks if task.bonus and task in asked]
    is_left_out = now.path != "bonus" and len(bonus) < len(asked)
    return [task for task in bonus if is_left_out and now.state(task) is State.TODO]


class Closing:
    """A pytest plugin that prints the end after grading a day or task of the learner's package."""

    def __init__(self, selection: Selection, program: str) -> None:
        self._selection, self._program = selection, program
        self._failed: dict[str, None] = {}  # tasks in the order of their first failure
        self._num_passed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        task = getattr(report, "of_task", None)
        if task is not None and report.failed and not hasattr(report, "todo"):
            self._failed.setdefault(task)
        self._num_passed += task is not None and report.passed and report.when == "call"

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, exitstatus: int | pytest.ExitCode
    ) -> None:
        course, wanted = self._selection.course, self._selection.wanted
        if self._failed:
            width = reporter_width(terminalreporter)
            for line in help_lines(open_desk(course), list(self._failed), self._program):
                for part in part_lines(line, width):
                    terminalreporter.line(part)
        elif wanted is not None and int(exitstatus) == 0 and self._num_passed:
            graded = [task for task in course.tasks if task in wanted]
            for line in green_lines(open_desk(course), graded, self._program):
                terminalreporter.line(line, green=True)


def help_lines(desk: Desk, failed: list[str], program: str) -> Iterator[str]:
    """For each task that failed, its hint and its chapter; then the command that looks for the mistake."""
    course = desk.course
    for task_id in failed:
        yield f"task {task_id}: {program} hint {task_id} · {chapter_of(course, course.task(task_id))}"
    before = course.tasks_before(course.task(failed[0]).day_id)
    if red := [task.id for task in before if desk.standing.state(task) is State.FAILING]:
        yield f"of earlier days, {', '.join(red)} failed when the tests ran last"
    yield (f"{program} explain {failed[0]} names a known mistake that fails the same tests, if one does")


def green_lines(desk: Desk, graded: list[Task], program: str) -> Iterator[str]:
    """The next task, and how to compare passed ones with the reference."""
    course, now = desk.course, desk.standing
    day = course.day(graded[-1].day_id)
    end = end_of_week(course, day)
    if end and now.is_passed(day):
        yield f"the week is done: {end} shows what you have built"
    task = now.next_task
    yield f"next: {task.id} {task.title}, {desk.where(task)}" if task else f"next: nothing, {now.end}"
    passed = [each for each in graded if now.state(each) is State.PASSED]
    if passed:
        # Of a whole day, its comparison; of one task, its own.
        name = day.id if len(graded) > 1 else passed[-1].id
        yield f"compare with the reference: {program} diff {name}"


class Brief:
    """A pytest plugin that shows the first failure alone, and names the other tests that failed."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> Generator[None, None, None]:
        stats = terminalreporter.stats
        before: dict[str, list[pytest.TestReport]]
        before = {kind: stats[kind] for kind in ("failed", "error") if kind in stats}
        reports = [report for kind in before for report in before[kind]]
        for kind in before:
            stats[kind] = [report for report in before[kind] if report is reports[0]]
        yield
        stats.update(before)
        if rest := [report.nodeid.rpartition("::")[2] for report in reports[1:]]:
            named = ", ".join(rest[:_MOST_NAMED]) + (", ..." if len(rest) > _MOST_NAMED else "")
            write_line(terminalreporter, f"and {plural(len(rest), 'more test')} failed: {named}")


_MOST_NAMED: Final = 4
