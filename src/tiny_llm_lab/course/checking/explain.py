"""Which known mistake does a failure look like? One that fails the same test with the same words."""

import multiprocessing
import re
from collections.abc import Sequence

import pytest

from tiny_llm_lab.course.checking.mistakes import mistake_trial
from tiny_llm_lab.course.checking.sandbox import Worker
from tiny_llm_lab.course.checking.worker import error_message
from tiny_llm_lab.course.manifest import Course, Mistake, Task
from tiny_llm_lab.solution import PACKAGES
from tiny_llm_lab.types import UserError

# A failing run must not take noticeably longer than a passing one.
_MAX_EXPLAINED = 3
_LIMIT_S = 10.0


class Explainer:
    """Adds a line to the report of a failed test when a known mistake of its task fails alike."""

    def __init__(self, course: Course, verbosity: int) -> None:
        self._course = course
        # pytest shortens what it says by how verbose it is: the runs must be alike in this too.
        self._verbosity = ["-v"] * verbosity
        self._worker = Worker()
        self._num_left = _MAX_EXPLAINED
        self._explained: set[str] = set()  # tasks; their other failures have the same cause

    def explain(self, report: pytest.TestReport, task: Task) -> None:
        is_inside_worker = multiprocessing.parent_process() is not None
        if self._num_left == 0 or task.id in self._explained or is_inside_worker:
            return
        try:
            mistakes = [mistake for mistake in self._course.mistakes() if mistake.task == task.id]
            self._num_left -= bool(mistakes)
            says = self._recognised(report.nodeid, mistakes, _comparable(error_message(report)))
        except (UserError, TimeoutError):
            # An explanation is a gift: without one the failure still stands by itself.
            return
        if says is not None:
            self._explained.add(task.id)
            report.sections.append(("known mistake", f"This is what happens when {says}."))

    def close(self) -> None:
        self._worker.close()

    def _recognised(self, test: str, mistakes: Sequence[Mistake], message: str) -> str | None:
        for mistake in mistakes:
            trial = mistake_trial(self._course, mistake, [test, *self._verbosity])
            failed = self._worker.run(trial, _LIMIT_S).having("failed")
            if any(_comparable(each.message) == message for each in failed):
                return mistake.says
        return None


def _comparable(message: str) -> str:
    """A message without what differs between two packages or two runs: names, paths, addresses."""
    values = [line for line in message.splitlines() if not re.match(r"\s*\+\s+where ", line)]
    return re.sub(r"0x[0-9a-f]+", "0x", "\n".join(values).replace(PACKAGES["ref"], PACKAGES["mine"]))
