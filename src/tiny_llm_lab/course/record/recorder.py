"""Records how each task's tests ended, in every run of `test`."""

import importlib.util
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

import pytest

from tiny_llm_lab.course.grading.selection import Selection
from tiny_llm_lab.course.manifest import Course
from tiny_llm_lab.course.record.record import Outcome, load_record, save_record
from tiny_llm_lab.course.record.task_sources import TaskSources
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
