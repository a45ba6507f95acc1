"""The pytest plugin that grades a solution: its options, the solution, and the hooks of the other modules."""

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Generator
from types import ModuleType
from typing import cast

import pytest

from tiny_llm_lab.course.grading.grading import LONG, TASK, Grader, Selection
from tiny_llm_lab.course.grading.run_tests import FLAGS
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.record.recorder import Brief, Closing, Recorder, is_learners, unasked_bonus
from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.checkout import repository
from tiny_llm_lab.runtime.console.talk import EXIT_INTERRUPTED, program
from tiny_llm_lab.runtime.solution import load_solution
from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.types import UserError
from tiny_llm_lab.types.packages import PACKAGES

# Of processor time: an endless loop fails its test, and ends the run. No test of ours takes half of it.
LIMIT_S = 10.0
# A test waits if it computes less than IDLE_S in MOST_TICKS ticks. A stopped process has one tick.
TICK_S, MOST_TICKS, IDLE_S = 1.0, 120, 0.5


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiny-llm")
    group.addoption("--solution", default="mine", choices=list(PACKAGES), help="whose code to test")
    for flag, settings in FLAGS.items():
        group.addoption(flag, **settings)
    group.addoption("--brief", action="store_true", help="show the first failure, and name the others")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--solution") == "mine":
        config.pluginmanager.register(Limits())
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
    is_inside_trial = multiprocessing.parent_process() is not None  # of a known mistake
    if not is_inside_trial and is_learners(course, selection.solution):
        selection.left_out = unasked_bonus(course, selection.wanted)
        if not is_worker(config):
            config.pluginmanager.register(Recorder(config, selection))
            config.pluginmanager.register(Closing(selection, program()), "closing")  # `-p no:closing`


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Find out once what every process would otherwise find out itself."""
    config = session.config
    if not is_worker(config) and config.getoption("numprocesses", None):
        _imported(config.getoption("--solution"))


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


class Limits:
    """A pytest plugin that fails a test after LIMIT_S of processor time, or if it waits without computing.

    No other test runs then. A busy machine lets a test wait as well, so the clock on the wall says nothing.
    Each phase of a test has its own limit: an error between them would be pytest's.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        begin_s, ticks = time.process_time(), 0

        def look(number: int, _: object) -> None:
            __tracebackhide__ = True
            nonlocal begin_s, ticks
            says = f"it takes more than {LIMIT_S:g} s of processor time: look for an endless loop"
            if number == signal.SIGALRM:
                if time.process_time() - begin_s >= IDLE_S:
                    begin_s, ticks = time.process_time(), 0
                ticks += 1
                if ticks < MOST_TICKS:
                    return
                says = f"it waits for something that never comes: {TICK_S * ticks:g} s without computing"
            self.pytest_enter_pdb()  # a tick during the failure would leave the clocks on behind the test
            item.session.shouldfail = "no other test ran"
            pytest.fail(says)

        signal.signal(signal.SIGPROF, look)
        signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)
        try:
            return (yield)
        finally:
            self.pytest_enter_pdb()

    pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup

    def pytest_enter_pdb(self) -> None:
        """Stop both clocks: whoever looks at a test in a debugger may take as long as they like."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


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
