"""Which known mistake do the failures of a task look like? One that fails the same tests in those words."""

import multiprocessing
import re
from collections.abc import Mapping, Sequence

import pytest

from tiny_llm_lab.course.checking.mistakes import mistake_trial
from tiny_llm_lab.course.checking.sandbox import run_trial
from tiny_llm_lab.course.checking.worker import error_message
from tiny_llm_lab.course.manifest import Mistake
from tiny_llm_lab.course.selection import Selection
from tiny_llm_lab.solution import PACKAGES
from tiny_llm_lab.types import UserError

# A failing run must not take noticeably longer than a passing one.
_MAX_TASKS = 3
_LIMIT_S = 10.0


class Explainer:
    """Names a known mistake when it alone, of those of its task, fails all that failed, and alike."""

    def __init__(self, config: pytest.Config, selection: Selection) -> None:
        self._course = selection.course
        # pytest shortens what it says by how verbose it is: the runs must be alike in this too.
        self._verbosity = ["-v"] * config.get_verbosity()
        is_inside_worker = multiprocessing.parent_process() is not None  # one that tries known mistakes
        self._is_on = selection.solution == "mine" and not is_inside_worker
        self._failed: dict[str, list[pytest.TestReport]] = {}  # by task
        self._recognised: dict[str, str] = {}  # by task, what the mistake says

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._is_on and hasattr(report, "task"):
            self._failed.setdefault(report.task, []).append(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Before the reporter shows the failures: those of a task are explained together."""
        for task, reports in list(self._failed.items())[:_MAX_TASKS]:
            wanted = {report.nodeid: _comparable(error_message(report)) for report in reports}
            try:
                mistakes = [mistake for mistake in self._course.mistakes() if mistake.task == task]
                found = [mistake.says for mistake in mistakes if self._fits(mistake, wanted)]
            except UserError:
                return  # an explanation is a gift: without one the failures still stand by themselves
            if len(found) == 1:
                self._recognised[task] = found[0]
                reports[0].sections.append(("known mistake", f"This is what happens when {found[0]}."))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        # Once more at the end: the first failure may stand many screens above.
        for task, says in self._recognised.items():
            terminalreporter.line(f"task {task}: this is what happens when {says}")

    def _fits(self, mistake: Mistake, wanted: Mapping[str, str]) -> bool:
        first, *rest = wanted
        for tests in ([first], rest):  # most mistakes are told apart by one test
            args = [*tests, *self._verbosity]
            said = self._messages(mistake, args) if tests else {}
            if any(said.get(test) != wanted[test] for test in tests):
                return False
        return True

    def _messages(self, mistake: Mistake, args: Sequence[str]) -> dict[str, str]:
        """By test, how it fails with this mistake; nothing when that takes too long."""
        try:
            failed = run_trial(mistake_trial(self._course, mistake, args), _LIMIT_S).having("failed")
        except TimeoutError:
            return {}
        return {each.test: _comparable(each.message) for each in failed}


def _comparable(message: str) -> str:
    """A message without what differs between two packages or two runs: names, paths, addresses."""
    values = [line for line in message.splitlines() if not re.match(r"\s*\+\s+where ", line)]
    return re.sub(r"0x[0-9a-f]+", "0x", "\n".join(values).replace(PACKAGES["ref"], PACKAGES["mine"]))
