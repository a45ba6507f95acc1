"""Reports a test that runs into unwritten code as its own outcome."""

import importlib.util
import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

from tiny_llm_lab.course.grading.selection import Selection
from tiny_llm_lab.course.growth import growths
from tiny_llm_lab.course.manifest import Task
from tiny_llm_lab.course.missing_parameter import MissingParameter, find_missing
from tiny_llm_lab.runtime.console.talk import wrapped_lines
from tiny_llm_lab.runtime.console.todo import Todo, find_todo
from tiny_llm_lab.runtime.native.compiling.build import CompileError, NoCompilerError
from tiny_llm_lab.types.packages import PACKAGES

_TODO = pytest.StashKey[Todo]()


class Grader:
    """Reports a test whose task is unwritten as "todo", and one whose C++ does not compile as "not compiled".

    The marks on a report consist of strings, so that they survive the way from a worker of pytest-xdist.
    """

    def __init__(self, config: pytest.Config, selection: Selection) -> None:
        self.course = selection.course
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
            report.todo = (todo.task, todo.where)  # type: ignore[attr-defined]
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
        if self.todos:
            terminalreporter.section("to do", yellow=True)
        for todo in sorted(self.todos, key=lambda todo: (self.task_ids.index(todo.task), todo.where)):
            num = self.todos[todo]
            write_line(terminalreporter, f"{todo} ({num} test{'s' * (num > 1)})", yellow=True)

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
    if isinstance(todo, MissingParameter):
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


def reporter_width(reporter: pytest.TerminalReporter) -> int | None:
    """The width of the terminal that pytest reports to; None where it is none."""
    return reporter.config.get_terminal_writer().fullwidth if reporter.isatty else None


def write_line(reporter: pytest.TerminalReporter, line: str, **markup: bool) -> None:
    """Write a line, broken between words where the terminal ends; `markup` as in pytest: `yellow=True`."""
    for part in wrapped_lines(line, reporter_width(reporter)):
        reporter.line(part, **markup)
