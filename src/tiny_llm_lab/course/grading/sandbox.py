"""Changed copies of a package, each tested by pytest in a process of its own that can be stopped."""

import contextlib
import importlib
import io
import math
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import pytest

from tiny_llm_lab.course.manifest import Course, Mistake
from tiny_llm_lab.types.packages import PACKAGES

# Without Hypothesis's plugin, which takes half a second: @given works. A library with a plugin may have been
# imported before pytest ran.
QUIETLY = (
    "-p tiny_llm_lab.course.grading.plugin -p no:cacheprovider -p no:hypothesispytest --color=no "
    "-W ignore::pytest.PytestAssertRewriteWarning"
).split()
# Not wrong but broken: Python that cannot run, or C++ that did not compile, maybe because of the time limit.
BROKEN: Final = re.compile(r"^(NameError|UnboundLocalError|SyntaxError|Failed: the C\+\+ compiler failed)")
TIME_LIMIT: Final = "the time limit"  # what ended the tests of a mistake that loops


@dataclass(frozen=True)
class Trial:
    """pytest, run at `root` on a copy of the folder `origin` under the name `package`, some files changed."""

    root: Path
    origin: Path
    package: str
    changed: Mapping[str, str]
    pytest_args: tuple[str, ...]
    plugins: tuple[object, ...] = ()  # of pytest


def mistake_trial(course: Course, mistake: Mistake, pytest_args: Sequence[str]) -> Trial:
    """The reference with one mistake made, and the tests to run on it. Raises UserError for a stale one."""
    changed = {mistake.file: mistake.apply(course.reference / mistake.file)}
    args = ("--solution", "ref", *pytest_args)
    return Trial(course.root, course.reference, course.reference.name, changed, args)


@dataclass(frozen=True)
class TestResult:
    """One test: "passed", "failed", "todo" or "skipped", and what its error said."""

    __test__ = False  # not a test class, whatever pytest makes of its name

    test: str
    outcome: str
    message: str = ""
    took_s: float = 0.0

    @property
    def headline(self) -> str:
        return self.message.partition("\n")[0]


@dataclass(frozen=True)
class Result:
    """The outcome of a trial; `error` says why its tests could not run at all. `cpu_s` is what it took."""

    tests: tuple[TestResult, ...] = ()
    error: str | None = None
    cpu_s: float = 0.0

    def having(self, outcome: str) -> list[TestResult]:
        return [test for test in self.tests if test.outcome == outcome]

    def faults(self) -> list[str]:
        """Why its tests could not run, or else each test that failed or is to do, in a line."""
        if self.error is not None:
            return [self.error]
        wrong = [test for test in self.tests if test.outcome in ("failed", "todo")]
        return [f"{test.test}: {test.headline}" for test in wrong]


def settled(result: Result | TimeoutError, limit_s: float) -> Result:
    """A trial's result, with an error where it took more than `limit_s`."""
    if isinstance(result, TimeoutError):
        return Result(error=f"its tests take more than {limit_s:.0f} s")
    return result


def serve(answer: Connection, trial: Trial, folder: Path, limit_s: float) -> None:
    """Run a trial on a copy in the empty `folder`, and send its Result.

    A trial that takes more than `limit_s` of processor time ends the process.
    """
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit_s), hard))
    copy = folder / trial.package
    shutil.copytree(trial.origin, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in trial.changed.items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text(text, encoding="utf-8")
    os.chdir(trial.root)
    # The root as well, where `python -m pytest` would put it: tests import their helpers from there.
    sys.path[:0] = [str(folder), str(trial.root)]
    answer.send(replace(_run(trial), cpu_s=time.process_time()))


def _run(trial: Trial) -> Result:
    recorder, args = _Recorder(), [*QUIETLY, "--capture=sys", "--tb=short", *trial.pytest_args]
    try:
        importlib.import_module(trial.package)
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            code = pytest.main(args, plugins=[recorder, *trial.plugins])
    except Exception as error:
        return Result(error=f"{type(error).__name__}: {error}")
    if recorder.collect_errors or code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        errors = [line for line in out.getvalue().splitlines() if "Error" in line or line.startswith("ERROR")]
        sentences = [*recorder.collect_errors, *errors[-1:], f"pytest ended with {code!r}"]
        return Result(error=sentences[0]) if code != pytest.ExitCode.NO_TESTS_COLLECTED else Result()
    return Result(tuple(recorder.tests))


@dataclass(eq=False)  # pytest wants plugins to be hashable
class _Recorder:
    """A pytest plugin that notes what it sees."""

    tests: list[TestResult] = field(default_factory=list)
    collect_errors: list[str] = field(default_factory=list)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.collect_errors.append(error_message(report).partition("\n")[0])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if getattr(report, "todo", False):
            self.tests.append(TestResult(report.nodeid, "todo", error_message(report)))
        elif report.failed or report.skipped or report.when == "call":
            self.tests.append(
                TestResult(report.nodeid, report.outcome, error_message(report), report.duration)
            )


def error_message(report: pytest.TestReport | pytest.CollectReport) -> str:
    """What a report's error says; "" without an error."""
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr or "").strip()


def comparable(message: str) -> str:
    """A message without the names, paths, addresses and times that differ between packages or runs."""
    values = [line for line in message.splitlines() if not re.match(r"\s*\+\s+where ", line)]
    found = "\n".join(values).replace(PACKAGES["ref"], PACKAGES["mine"])
    cut = re.sub(r"([<(])[\w.]*\.\.\.[\w.]*[>)]?\]*", r"\1...", found)  # where depends on the package's name
    return re.sub(r"(0x|_s=)[0-9a-f.]+", r"\1", cut)


def rounded(message: str) -> str:
    """A comparable message, its numbers with four digits: another order of operations rounds otherwise."""
    return re.sub(r"\d+\.\d{4,}(?:e-?\d+)?", lambda found: f"{float(found[0]):.4g}", comparable(message))


# A mutation may loop forever. A task's tests take a few seconds, and compiling kernels about twenty.
# Processor time, not elapsed time: a busy machine must not turn a missed mistake into a caught one.
LIMIT_S = 60.0
# For a mutation that waits forever without computing.
_WALL_FACTOR = 10
# More would not help: MLX uses several threads itself.
_MAX_PROCESSES = 2
# We import slow libraries once, in a server that forks a process for each trial. MLX is an exception: a
# forked copy of a process in which it runs hangs.
PRELOADED = ["numpy", "pytest", "rich.live", "rich.progress"]
PRELOADED += ["transformers.models.auto.tokenization_auto"]


def run_trial(trial: Trial, limit_s: float = LIMIT_S) -> Result:
    """The result of a trial. Raises TimeoutError when it takes more than `limit_s` of processor time."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it would say that PyTorch is missing
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    answer, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="tiny-llm-") as folder:
        process = context.Process(target=serve, args=(theirs, trial, Path(folder), limit_s), daemon=True)
        process.start()
        theirs.close()
        try:
            if not answer.poll(limit_s * _WALL_FACTOR):
                raise TimeoutError
            result = answer.recv()
            assert isinstance(result, Result)
            return result
        except EOFError:
            process.join()
            if process.exitcode == -signal.SIGXCPU:
                raise TimeoutError from None
            return Result(error="the process that ran the tests died")
        finally:
            process.kill()
            process.join()


def run_trials(trials: Iterable[Trial], limit_s: float = LIMIT_S) -> Iterator[Result | TimeoutError]:
    """The results of many trials, in order, from a few processes at a time; limits as in `run_trial`."""
    with ThreadPoolExecutor(min(_MAX_PROCESSES, os.cpu_count() or 1)) as pool:
        yield from pool.map(partial(_result_or_timeout, limit_s), trials)


def _result_or_timeout(limit_s: float, trial: Trial) -> Result | TimeoutError:
    try:
        return run_trial(trial, limit_s)
    except TimeoutError as error:
        return error
