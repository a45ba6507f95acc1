"""The pytest plugin that grades a solution: its options, the solution, and the hooks of the other modules."""

import contextlib
import importlib.util
import multiprocessing
import os
import signal
import traceback
from collections.abc import Generator
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from tiny_llm_lab.course.grading.grading import LONG, TASK, Grader, Selection
from tiny_llm_lab.course.grading.run_tests import FLAGS
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.record.recorder import Brief, Closing, Recorder, is_learners
from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.checkout import repository
from tiny_llm_lab.runtime.console.talk import EXIT_INTERRUPTED, program
from tiny_llm_lab.runtime.native.compiling.build import binding_library, build_all, kernel_library
from tiny_llm_lab.runtime.native.compiling.isa import available
from tiny_llm_lab.runtime.solution import load_solution
from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.types import UserError
from tiny_llm_lab.types.packages import PACKAGES

# Of processor time: an endless loop fails its test, and ends the run. No test of ours takes half of it.
_LIMIT_S = 10.0
_WAITS_S = 120.0  # of a test that waits and does not compute, without what compiling takes


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiny-llm")
    group.addoption("--solution", default="mine", choices=list(PACKAGES), help="whose code to test")
    for flag, settings in FLAGS.items():
        group.addoption(flag, **settings)
    group.addoption(
        "--time-limit",
        type=float,
        metavar="S",
        help=f"most seconds of processor time for a test of mine; 0 is no limit (default: {_LIMIT_S:.0f})",
    )
    group.addoption("--brief", action="store_true", help="show the first failure, and name the others")


@pytest.hookimpl(tryfirst=True)  # before pytest-timeout reads its limit
def pytest_configure(config: pytest.Config) -> None:
    limit_s = config.getoption("--time-limit")
    if limit_s is None and config.getoption("--solution") == "mine":
        limit_s = _LIMIT_S
    if limit_s and config.getoption("timeout", None) is None:
        config.option.timeout = _WAITS_S
        config.pluginmanager.register(ProcessorTime(limit_s))
    for marker in (TASK, LONG):
        config.addinivalue_line("markers", marker)
    # A week's tests grade the Python they name; tests of the C++ kernels switch them on themselves.
    os.environ[native.VARIABLE] = config.getoption("--kernels") or os.environ.get(native.VARIABLE, "off")
    # Another tree, such as in this plugin's tests, has its own manifest.
    own = config.rootpath / "course.toml"
    try:
        course = load_course(config.rootpath if own.exists() else repository())
        selection = Selection(config, course)
    except UserError as error:
        raise pytest.UsageError(str(error)) from None
    brief = [Brief()] if config.getoption("--brief") else []
    for plugin in (selection, Grader(config, selection, program()), Interrupt(), *brief):
        config.pluginmanager.register(plugin)
    if not is_worker(config):
        is_inside_trial = multiprocessing.parent_process() is not None  # of a known mistake
        if not is_inside_trial and is_learners(course, selection.solution):
            config.pluginmanager.register(Recorder(config, selection))
            config.pluginmanager.register(Closing(selection, program()), "closing")  # `-p no:closing`


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Do once what every process would otherwise find out or compile itself."""
    config = session.config
    if is_worker(config) or not config.getoption("numprocesses", None):
        return
    name = config.getoption("--solution")
    _imported(name)
    if name == "ref":
        precompile(PACKAGES[name])


@pytest.fixture(scope="session")
def llm(pytestconfig: pytest.Config) -> TaskNames:
    """The solution under test: the package that `--solution` names, with the names of all its tasks."""
    return _imported(pytestconfig.getoption("--solution"))


def is_worker(config: pytest.Config) -> bool:
    """Whether this is one of the processes that pytest-xdist runs the tests in."""
    return hasattr(config, "workerinput")


def _imported(name: str) -> TaskNames:
    try:
        return TaskNames(cast(ModuleType, load_solution(name)))
    except (SyntaxError, ImportError, NameError) as error:
        # Every test would fail in the same way, so we say it once.
        last = "".join(traceback.format_exception(error, limit=-1))
        pytest.exit(f"cannot import {PACKAGES[name]}\n{last}", returncode=1)


class ProcessorTime:
    """A pytest plugin that fails a test after `limit_s` of processor time, and runs no other one then."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        says = f"it takes more than {self._limit_s:g} s of processor time: look for a loop that never ends"

        def fail(*_: object) -> None:
            __tracebackhide__ = True
            item.session.shouldfail = "no other test ran"
            pytest.fail(says)

        before = signal.signal(signal.SIGPROF, fail)
        signal.setitimer(signal.ITIMER_PROF, self._limit_s)  # what a compiler takes does not count
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)


class Interrupt:
    """A pytest plugin: pytest's own code for Ctrl-C is also that of errors of collection."""

    def __init__(self) -> None:
        self._came = False

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self._came = excinfo.type is KeyboardInterrupt  # and not one of pytest's own, derived from it

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._came:
            session.exitstatus = EXIT_INTERRUPTED


def precompile(package: str) -> None:
    """Compile the kernels of `package` for every instruction set of this machine.

    Does nothing without kernels. If something does not compile, the tests that need it say why.
    """
    spec = importlib.util.find_spec(package)
    folder = Path(spec.origin).parent / "kernels" if spec and spec.origin else None
    if folder is None or not folder.is_dir():
        return
    with contextlib.suppress(UserError):
        build_all([*(kernel_library(folder, isa) for isa in available()), binding_library()])
