"""The same tests on two packages, in this process, with every call recorded."""

import contextlib
import io
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pytest

from tiny_llm_lab.course.compare.calls import Call, Recorder
from tiny_llm_lab.course.record.recorder import Recorder as GradingRecord
from tiny_llm_lab.types import UserError
from tiny_llm_lab.types.packages import PACKAGES

_PYTEST_ARGS: Final = (
    *("-p", "tiny_llm_lab.course.grading.plugin", "-p", "no:cacheprovider"),
    *("-p", "no:hypothesispytest"),
    *("-q", "--tb=no", "--color=no", "-m", "not long"),
    # The second run finds the libraries of the first.
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)


@dataclass(frozen=True)
class CallsOfTest:
    """The calls of one test, and whether the test failed on this package."""

    calls: list[Call]
    has_failed: bool = False


@dataclass(eq=False)  # pytest wants plugins to be hashable
class _Watcher:
    """A pytest plugin that keeps the calls of each test, and how it ended."""

    recorder: Recorder
    only: Collection[str] | None = None
    tests: dict[str, CallsOfTest] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        for plugin in config.pluginmanager.get_plugins():
            if isinstance(plugin, GradingRecord):  # this run grades nothing
                config.pluginmanager.unregister(plugin)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.only is not None:
            items[:] = [item for item in items if item.nodeid in self.only]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.recorder.take()
        result = yield
        self.tests[item.nodeid] = CallsOfTest(self.recorder.take(), item.nodeid in self.failed)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)


def recorded_calls(
    solution: str, pytest_args: Sequence[str], only: Collection[str] | None = None
) -> dict[str, CallsOfTest]:
    """By test, what the package of `solution` is asked and answers; with `only`, of these tests alone.

    Raises UserError when no test runs.
    """
    recorder = Recorder(PACKAGES[solution])
    watcher = _Watcher(recorder, only)
    args = [*_PYTEST_ARGS, "--solution", solution, *pytest_args]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), recorder.recording():
        code = pytest.main(args, plugins=[watcher])
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise UserError(
            "no test has this in its name: leave out -k, or look up names with `test --collect-only -q`"
        )
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
        last = [line for line in said.getvalue().splitlines() if line.strip()][-1:]
        raise UserError(f"the tests do not run on {PACKAGES[solution]}: {''.join(last)}")
    return watcher.tests
