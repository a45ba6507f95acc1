"""Which known mistake do the failures of a task look like? One that fails just those tests in those words."""

import multiprocessing
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate

import pytest

from tiny_llm_lab.commands.program import program
from tiny_llm_lab.course.checking.mistakes import mistake_trial
from tiny_llm_lab.course.checking.resemblance import comparable, failures, num_alike
from tiny_llm_lab.course.checking.trial_pool import TrialPool, results_of
from tiny_llm_lab.course.checking.worker import Result, error_message
from tiny_llm_lab.course.manifest import Mistake
from tiny_llm_lab.course.reporting import write_line
from tiny_llm_lab.course.selection import Selection
from tiny_llm_lab.types import UserError

# A learner waits for it: with no answer by then, the failures stand by themselves.
BUDGET_S = 4.0
_MAX_TASKS = 3
WITHOUT_HYPOTHESIS = ("-p", "no:hypothesispytest")  # half a second, and no test of a task uses it
_PASSED_S = 1.0  # of tests that passed, tried on what fails alike
_LIMIT_S = 3.0  # of processor time: an endless loop must leave some of the budget to the other mistakes


class Explainer:
    """Names a known mistake when it alone, of those of its task, fails what failed, alike, and no more."""

    def __init__(self, config: pytest.Config, selection: Selection) -> None:
        self._course = selection.course
        # pytest shortens what it says by how verbose it is: the runs must be alike in this too.
        self._verbosity = ["-v"] * config.get_verbosity()
        self._budget_s: float = config.getoption("--explain-for")
        is_inside_worker = multiprocessing.parent_process() is not None  # one that tries known mistakes
        self.is_on = selection.solution == "mine" and not is_inside_worker
        self._failed: dict[str, list[pytest.TestReport]] = {}  # by task
        self._passed: dict[str, list[pytest.TestReport]] = {}  # by task
        self._recognised: dict[str, str] = {}  # by task, what the mistake says
        self._untried: str | None = None  # a task for which the time was too short
        self._pool: TrialPool | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.is_on and report.passed and report.when == "call" and hasattr(report, "of_task"):
            self._passed.setdefault(report.of_task, []).append(report)
        if self.is_on and hasattr(report, "task"):
            self._failed.setdefault(report.task, []).append(report)
            if self._pool is None and self._budget_s > 0:
                self._pool = TrialPool(_LIMIT_S)  # its processes begin while the other tests run

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Before the reporter shows the failures: those of a task are explained together."""
        if self._pool is None:
            return
        try:
            self._explain(self._pool, time.monotonic() + self._budget_s)
        finally:
            self._pool.close()

    def _explain(self, pool: TrialPool, until: float) -> None:
        # What is wrong in one task fails the tests of later ones as well.
        order = [task.id for task in self._course.tasks]
        for task in sorted(self._failed, key=order.index)[:_MAX_TASKS]:
            reports = self._failed[task]
            wanted = {report.nodeid: comparable(error_message(report)) for report in reports}
            try:
                found = self._fitting(pool, task, wanted, until)
            except TimeoutError:
                self._untried = task
                return
            except UserError:
                return  # an explanation is a gift: without one the failures still stand by themselves
            if len(found) == 1:
                self._recognised[task] = found[0].says
                reports[0].sections.append(("known mistake", f"This is what happens when {found[0].says}."))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        # Once more at the end: the first failure may stand many screens above.
        for task, says in self._recognised.items():
            write_line(terminalreporter, f"task {task}: this is what happens when {says}")
        if self._untried is not None:
            tries = f"{program()} explain {self._untried} tries all its known mistakes"
            said = f"task {self._untried}: not explained in {self._budget_s:g} s; {tries}"
            write_line(terminalreporter, said)

    def _fitting(self, pool: TrialPool, task: str, wanted: Mapping[str, str], until: float) -> list[Mistake]:
        """The mistakes of a task that fail the tests in `wanted` with these messages, and none that passed.

        Raises TimeoutError when not all have been tried by `until`: one that is left might fit as well.
        """
        mistakes = [mistake for mistake in self._course.mistakes() if mistake.task == task]
        first, *rest = wanted
        for tests in ([first], rest):  # most mistakes are told apart by one test
            if not tests:
                continue
            said = self._messages(pool, mistakes, tests, until)
            mistakes = [
                mistake
                for mistake, messages in zip(mistakes, said, strict=True)
                if num_alike({test: wanted[test] for test in tests}, messages) == len(tests)
            ]
        passed = self._quick_passed(task)
        if not mistakes or not passed:
            return mistakes
        more = self._messages(pool, mistakes, passed, until)
        return [mistake for mistake, messages in zip(mistakes, more, strict=True) if not messages]

    def _quick_passed(self, task: str) -> list[str]:
        """Tests of a task that passed, the fastest first, as many as run in a second."""
        reports = sorted(self._passed.get(task, ()), key=lambda report: report.duration)
        ends_s = accumulate(report.duration for report in reports)
        return [report.nodeid for report, end_s in zip(reports, ends_s, strict=True) if end_s <= _PASSED_S]

    def _messages(
        self, pool: TrialPool, mistakes: Sequence[Mistake], tests: Sequence[str], until: float
    ) -> list[dict[str, str]]:
        """Of each mistake, how these tests fail, by test. Raises TimeoutError when that takes too long."""
        args = [*tests, *self._verbosity, *WITHOUT_HYPOTHESIS]
        trials = [mistake_trial(self._course, mistake, args) for mistake in mistakes]
        said = [_of_tests(result) for result in results_of(trials, pool, _LIMIT_S, until)]
        if time.monotonic() >= until:
            raise TimeoutError
        return said


def _of_tests(result: Result | TimeoutError) -> dict[str, str]:
    """By test, how it fails; nothing when that takes too long."""
    return {} if isinstance(result, TimeoutError) else failures(result)
