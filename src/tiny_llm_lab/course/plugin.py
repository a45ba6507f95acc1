"""The pytest plugin that grades a solution: which tests run, and unwritten tasks as their own outcome."""

import importlib.util
import os
import traceback
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from tiny_llm_lab import native
from tiny_llm_lab.course.checking.explain import Explainer
from tiny_llm_lab.course.manifest import Course, Task, load_course, repository
from tiny_llm_lab.course.task_names import TaskNames
from tiny_llm_lab.course.todo import Todo, find_todo
from tiny_llm_lab.native.build import CompileError
from tiny_llm_lab.solution import PACKAGES, load_solution
from tiny_llm_lab.types import UserError

MARKER = 'task(id): the exercise of course.toml that a test belongs to, as in task("2.7.3")'
TODO_KEY = pytest.StashKey[Todo]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiny-llm")
    group.addoption("--solution", default="mine", choices=list(PACKAGES), help="whose code to test")
    group.addoption("--week", type=int, help="only the tests of this week's tasks")
    group.addoption("--day", help="only the tests of this day's tasks: --week 2 --day 7, or --day 2.7")
    group.addoption("--task", help="only the tests of this task: --task 2.7.3")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    # A week's tests grade the Python they name; those of the C++ kernels switch them on themselves.
    os.environ.setdefault(native.VARIABLE, "off")
    # A tree of its own, as in the tests of this plugin, brings its own manifest.
    own = config.rootpath / "course.toml"
    try:
        course = load_course(config.rootpath if own.exists() else repository())
        config.pluginmanager.register(Grader(config, course), "tiny-llm-grader")
    except UserError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture(scope="session")
def llm(pytestconfig: pytest.Config) -> TaskNames:
    """The solution under test: the package that `--solution` names, with the names of all its tasks."""
    name = pytestconfig.getoption("--solution")
    try:
        return TaskNames(cast(ModuleType, load_solution(name)))
    except (SyntaxError, ImportError, NameError) as error:
        # Every test would fail in the same way: say it once.
        last = "".join(traceback.format_exception(error, limit=-1))
        pytest.exit(f"{PACKAGES[name]} cannot be imported\n{last}", returncode=1)


class Grader:
    """The hooks that need to know the course and what was asked for."""

    def __init__(self, config: pytest.Config, course: Course) -> None:
        self.course = course
        self.solution: str = config.getoption("--solution")
        options = (config.getoption(name) for name in ("--week", "--day", "--task"))
        self.wanted = course.select(*options)
        self.explainer = Explainer(course, config.get_verbosity())
        self.todos: Counter[Todo] = Counter()
        self.num_unmarked = 0
        self.compiler_said: set[str] = set()
        self.task_ids = [task.id for task in course.tasks]

    def pytest_report_header(self) -> str:
        return f"grading: {self.solution} = {self._package() or 'not found'}"

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept: list[pytest.Item] = []
        dropped: list[pytest.Item] = []
        for item in items:
            task = self._task_of(item)
            if task is None:
                # Tests of the lab say nothing about a learner's code.
                is_kept = self.wanted is None and self.solution != "mine"
                self.num_unmarked += not is_kept
            else:
                is_kept = self.wanted is None or task in self.wanted
            (kept if is_kept else dropped).append(item)
        items[:] = kept
        config.hook.pytest_deselected(items=dropped)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        task, todo = self._task_of(item), self._todo_behind(call)
        is_too_late = task is not None and todo is not None and self._comes_later(todo.task, task)
        if todo is not None:
            _shorten(call, f"{_blame(task, todo)}\n{todo}" if task and is_too_late else str(todo))
        elif call.excinfo and isinstance(call.excinfo.value, CompileError):
            _shorten(call, self._compiler_says(call.excinfo.value))
        report = yield
        if not report.failed or is_too_late:
            return report
        if todo is None:
            does_run = not self.compiler_said
            if does_run and task is not None and self.solution == "mine" and report.when == "call":
                self.explainer.explain(report, task)
        elif report.when == "teardown" and TODO_KEY in item.stash:
            report.outcome, report.longrepr = "passed", None
        else:
            item.stash[TODO_KEY] = todo
            self.todos[todo] += 1
            report.todo = True  # type: ignore[attr-defined]
        return report

    def pytest_sessionfinish(self) -> None:
        self.explainer.close()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        # The report stays a failure, so that the exit code is 1; only its category is another.
        return ("todo", "○", ("TODO", {"yellow": True})) if getattr(report, "todo", False) else None

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.todos:
            terminalreporter.section("to do", yellow=True)
        for todo in sorted(self.todos, key=lambda todo: self.task_ids.index(todo.task)):
            num = self.todos[todo]
            terminalreporter.line(f"{todo} ({num} test{'s' * (num > 1)})", yellow=True)
        if self.num_unmarked and self.wanted is None:
            terminalreporter.line(f"{self.num_unmarked} tests of the lab need --solution ref")

    def _task_of(self, item: pytest.Item) -> Task | None:
        marker = item.get_closest_marker("task")
        if marker is None:
            return None
        if len(marker.args) != 1 or marker.kwargs:
            raise pytest.UsageError(f"{item.nodeid}: a task marker takes one id, as in task('2.7.3')")
        try:
            return self.course.task(marker.args[0])
        except UserError as error:
            raise pytest.UsageError(f"{item.nodeid}: {error}") from None

    def _todo_behind(self, call: pytest.CallInfo[None]) -> Todo | None:
        package = self._package()
        kernels = package / "kernels" if package else None
        todo = find_todo(call.excinfo.value, self.course.root, kernels) if call.excinfo else None
        return todo if todo is not None and todo.task in self.task_ids else None

    def _package(self) -> Path | None:
        spec = importlib.util.find_spec(PACKAGES[self.solution])
        return Path(spec.origin).parent if spec and spec.origin else None

    def _compiler_says(self, error: CompileError) -> str:
        """The compiler's words, which all tests of the same kernels would repeat, for the first of them."""
        said = str(error).replace(f"{self.course.root}{os.sep}", "")
        if said in self.compiler_said:
            return "the C++ compiler failed, as said above"
        self.compiler_said.add(said)
        return said

    def _comes_later(self, needed: str, task: Task) -> bool:
        return self.course.is_later(self.course.task(needed).day_id, than=task.day_id)


def _blame(task: Task, todo: Todo) -> str:
    return (
        f"This test of task {task.id} needs task {todo.task}, which comes later: "
        "a mistake of the course, not yours."
    )


def _shorten(call: pytest.CallInfo[None], text: str) -> None:
    """Make `text` all that pytest reports. Showing a traceback takes longer than most tests."""
    if call.excinfo is not None:
        short = pytest.fail.Exception(text, pytrace=False)
        call.excinfo = pytest.ExceptionInfo.from_exc_info((type(short), short, call.excinfo.tb))
