"""Which tests run, and a test that runs into unwritten code as an outcome of its own."""

import importlib.util
import os
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from tiny_llm_lab.course.exercises import find_missing, growths
from tiny_llm_lab.course.manifest import Course, Task
from tiny_llm_lab.runtime.console.talk import wrapped_lines
from tiny_llm_lab.runtime.console.todo import Todo, find_todo
from tiny_llm_lab.runtime.native.compiling.build import CompileError, NoCompilerError
from tiny_llm_lab.types import UserError
from tiny_llm_lab.types.packages import PACKAGES

TASK = 'task(id): the exercise of course.toml that a test belongs to, as in task("2.7.3")'
LONG = "long: takes seconds or minutes; runs with --full, or if you ask for its week, day or task"
_COUNTS = "tiny_llm_left_out"  # what a worker of pytest-xdist sends to the reporting process


class Selection:
    """The tests that were asked for. The same in every worker, so any one of them can tell the counts."""

    def __init__(self, config: pytest.Config, course: Course) -> None:
        self.course = course
        self.solution: str = config.getoption("--solution")
        self.wanted = course.select(*(config.getoption(name) for name in ("--week", "--day", "--task")))
        self.left_out: Sequence[Task] = ()  # wanted as part of more, and not tested
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
            is_asked_for = (self.wanted is None or task in self.wanted) and task not in self.left_out
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
        if self.left_out:
            named = ", ".join(task.id for task in self.left_out)
            write_line(terminalreporter, f"left out, as a bonus that you have not written: {named}")


_TODO = pytest.StashKey[Todo]()


class Grader:
    """Reports a test whose task is unwritten as "todo", and one whose C++ does not compile as "not compiled".

    The marks on a report consist of strings, so that they survive the way from a worker of pytest-xdist.
    """

    def __init__(self, config: pytest.Config, selection: Selection, program: str) -> None:
        self.course, self._program = selection.course, program
        self.selection = selection
        self.todos: Counter[Todo] = Counter()
        self.compiler_said: dict[str, None] = {}
        self.growths = growths(selection.course)
        self.task_ids = [task.id for task in self.course.tasks]

    def pytest_report_header(self) -> str:
        return f"grading: {self.selection.solution} = {self._package() or 'not found'}"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        task, todo = self.selection.task_of(item), self._todo_behind(call)
        is_too_late = task is not None and todo is not None and self._comes_later(todo.task, task)
        message = self._compiler_said(call)
        if todo is not None:
            _shorten(call, _blame(task, todo) if task and is_too_late else str(todo))
        elif message is not None:
            _shorten(call, message)
        else:
            _name_what_did_not_raise(call)
        report = yield
        if task is not None:
            report.of_task = task.id  # type: ignore[attr-defined]
        if message is not None:
            report.compiler_said = message  # type: ignore[attr-defined]
        if not report.failed or is_too_late or message is not None or todo is None:
            return report
        if report.when == "teardown" and _TODO in item.stash:
            report.outcome, report.longrepr = "passed", None
        else:
            item.stash[_TODO] = todo
            report.todo = (todo.task, todo.where, todo.is_parameter)  # type: ignore[attr-defined]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if hasattr(report, "todo"):
            self.todos[Todo(*report.todo)] += 1
        self.compiler_said.update({getattr(report, "compiler_said", ""): None})

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        # The report stays a failure, so that the exit code is 1; only its category changes.
        if hasattr(report, "compiler_said"):
            return ("not compiled", "C", ("NOT COMPILED", {"red": True}))
        return ("todo", "○", ("TODO", {"yellow": True})) if hasattr(report, "todo") else None

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for message in filter(None, self.compiler_said):
            terminalreporter.section("the C++ does not compile", red=True)
            terminalreporter.line(message)
        wanted = [task for task in self.course.tasks if task in (self.selection.wanted or ())]
        before = self.course.tasks_before(wanted[0].day_id) if wanted else []
        # A function of the learner's own stays when days are filled, without what they add to it.
        stubs = {todo.task for todo in self.todos if not todo.is_parameter}
        earlier = [task.id for task in before if task.id in stubs]
        own = [todo for todo in self.todos if todo.is_parameter or todo.task not in earlier]
        if own:
            terminalreporter.section("to do", yellow=True)
        for todo in sorted(own, key=lambda todo: (self.task_ids.index(todo.task), todo.where)):
            num = self.todos[todo]
            write_line(terminalreporter, f"{todo} ({num} test{'s' * (num > 1)})", yellow=True)

        if earlier:
            given = f"{self._program} stubs --fill-before {wanted[0].day_id} gives them"
            write_line(terminalreporter, f"of earlier days: {', '.join(earlier)} to do; {given}", yellow=True)

    def _todo_behind(self, call: pytest.CallInfo[None]) -> Todo | None:
        if call.excinfo is None:
            return None
        package = self._package()
        kernels = package / "kernels" if package else None
        error, root = call.excinfo.value, self.course.root
        todo = find_todo(error, root, kernels)
        if todo is None and package:
            todo = find_missing(error, self.growths, package, root)
        return todo if todo is not None and todo.task in self.task_ids else None

    def _package(self) -> Path | None:
        spec = importlib.util.find_spec(PACKAGES[self.selection.solution])
        return Path(spec.origin).parent if spec and spec.origin else None

    def _compiler_said(self, call: pytest.CallInfo[None]) -> str | None:
        """The compiler's errors, or that there is none. All tests of the same kernels bring the same."""
        if call.excinfo is None or not isinstance(call.excinfo.value, CompileError | NoCompilerError):
            return None
        message = str(call.excinfo.value).removeprefix("the C++ compiler failed\n")
        return message.replace(f"{self.course.root}{os.sep}", "")

    def _comes_later(self, needed: str, task: Task) -> bool:
        return self.course.is_later(self.course.task(needed).day_id, than=task.day_id)


def _blame(task: Task, todo: Todo) -> str:
    if todo.is_parameter:
        return (
            f"A given answer passes {todo.where}, which your function does not have yet (task {todo.task}): "
            "add the parameter, and ignore it until then."
        )
    return (
        f"This test of task {task.id} needs task {todo.task}, which comes later: "
        f"that is the course's mistake, not yours.\n{todo}"
    )


def _shorten(call: pytest.CallInfo[None], text: str) -> None:
    """Make `text` all that pytest reports. Showing a traceback takes longer than most tests."""
    if call.excinfo is not None:
        short = pytest.fail.Exception(text, pytrace=False)
        call.excinfo = pytest.ExceptionInfo.from_exc_info((type(short), short, call.excinfo.tb))


def _name_what_did_not_raise(call: pytest.CallInfo[None]) -> None:
    """Add the code within `pytest.raises` to the message that it raised nothing."""
    error = call.excinfo and call.excinfo.value
    if call.excinfo and isinstance(error, pytest.fail.Exception) and "DID NOT RAISE" in str(error):
        entry = call.excinfo.traceback.filter(call.excinfo)[-1]
        source = entry.frame.code.fullsource
        body = source.getstatement(entry.lineno + len(entry.statement.lines)) if source else ""
        error.msg = " ".join(f"{error}: {body}".split())


def reporter_width(reporter: pytest.TerminalReporter) -> int | None:
    """The width of the terminal that pytest reports to; None where it is none."""
    return reporter.config.get_terminal_writer().fullwidth if reporter.isatty else None


def write_line(reporter: pytest.TerminalReporter, line: str, **markup: bool) -> None:
    """Write a line, broken between words where the terminal ends; `markup` as in pytest: `yellow=True`."""
    for part in wrapped_lines(line, reporter_width(reporter)):
        reporter.line(part, **markup)
