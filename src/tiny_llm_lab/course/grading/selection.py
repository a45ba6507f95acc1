"""Which tests run: the ones for your tasks, and long ones only if you ask for them."""

from collections import Counter
from collections.abc import Generator

import pytest

from tiny_llm_lab.course.manifest import Course, Task
from tiny_llm_lab.types import UserError

TASK = 'task(id): the exercise of course.toml that a test belongs to, as in task("2.7.3")'
LONG = "long: takes seconds or minutes; runs with --full, or if you ask for its week, day or task"
_COUNTS = "tiny_llm_left_out"  # what a worker of pytest-xdist sends to the reporting process


class Selection:
    """The tests that were asked for. The same in every worker, so any one of them can tell the counts."""

    def __init__(self, config: pytest.Config, course: Course) -> None:
        self.course = course
        self.solution: str = config.getoption("--solution")
        self.wanted = course.select(*(config.getoption(name) for name in ("--week", "--day", "--task")))
        self.num_unmarked = 0
        self.num_long = 0
        self.num_tests: Counter[str] = Counter()  # of each task, by its id, whether they run or not
        self._config = config
        self._takes_long = config.getoption("--full") or self.wanted is not None

    def task_of(self, item: pytest.Item) -> Task | None:
        """The task that a test is marked with. Raises pytest.UsageError for a mark that names none."""
        marker = item.get_closest_marker("task")
        if marker is None:
            return None
        if len(marker.args) != 1 or marker.kwargs:
            raise pytest.UsageError(f"{item.nodeid}: a task marker takes one id, such as task('2.7.3')")
        try:
            return self.course.task(marker.args[0])
        except UserError as error:
            raise pytest.UsageError(f"{item.nodeid}: {error}") from None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        # Before -k and the like choose among them.
        self.num_tests.update(task.id for task in map(self.task_of, items) if task is not None)
        yield
        kept: list[pytest.Item] = []
        dropped: list[pytest.Item] = []
        for item in items:
            (kept if self._is_kept(item) else dropped).append(item)
        items[:] = kept
        config.hook.pytest_deselected(items=dropped)

    def _is_kept(self, item: pytest.Item) -> bool:
        task = self.task_of(item)
        if task is None:
            # Tests of the lab say nothing about a learner's code.
            is_asked_for = self.wanted is None and self.solution != "mine"
            self.num_unmarked += not is_asked_for
        else:
            is_asked_for = self.wanted is None or task in self.wanted
        is_too_long = is_asked_for and not self._takes_long and item.get_closest_marker("long") is not None
        self.num_long += is_too_long
        return is_asked_for and not is_too_long

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[_COUNTS] = (self.num_unmarked, self.num_long, dict(self.num_tests))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Called where pytest-xdist reports, with each worker that has ended."""
        output = getattr(node, "workeroutput", {})  # missing if the worker crashed
        if _COUNTS in output:
            self.num_unmarked, self.num_long, num_tests = output[_COUNTS]
            self.num_tests = Counter(num_tests)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.num_unmarked and self.wanted is None:
            terminalreporter.line(f"skipped {self.num_unmarked} tests of the lab, which need --solution ref")
        if self.num_long:
            terminalreporter.line(f"skipped {self.num_long} long tests: --full runs them")
