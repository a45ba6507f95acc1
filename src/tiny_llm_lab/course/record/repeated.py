"""One error of a learner's code fails many tests: it is shown in full once."""

from pathlib import Path

import pytest


class Repeated:
    """A pytest plugin that shortens a failure when the same line of code raised the same error before."""

    def __init__(self, starter: Path) -> None:
        self._starter = starter
        self._failures: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failures.append(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Behind the explainer, which reads the failures in full, and before they are shown."""
        first: dict[str, str] = {}  # by what was raised where, the test that is shown in full
        for report in self._failures:
            raised = self._raised(report)
            if raised and first.setdefault(raised, report.nodeid) != report.nodeid:
                report.longrepr = f"{raised}\n  as in {first[raised]}"

    def _raised(self, report: pytest.TestReport) -> str:
        """The place in the learner's code and the error; "" where a test itself complains."""
        crash = getattr(report.longrepr, "reprcrash", None)  # where the innermost error was raised
        if crash is None or not Path(crash.path).is_relative_to(self._starter):
            return ""
        place = Path(crash.path).relative_to(self._starter.parent.parent)
        first_line = crash.message.partition("\n")[0]
        return f"{place}:{crash.lineno}: {first_line}"
