"""A crash of a learner's code is one line that names test and task, and other ends pass through."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_llm_lab.course.grading.run_tests import environment

# What `test` does: fork, and become pytest in the child.
GRADE = """
import os, sys
from tiny_llm_lab.course.grading.crash import outlived
from tiny_llm_lab.course.grading.run_tests import pytest_command
command = [*pytest_command("mine"), *sys.argv[1:], "tests"]
os.execve(command[0], command, outlived(os.environ))
"""
CHILD = """
import os, signal, sys, time
from tiny_llm_lab.course.grading.crash import VARIABLE, outlived
file = int(outlived(os.environ)[VARIABLE])
os.pwrite(file, b"test_sums.py::test_twice of task 1.1.1", 0)
"""
AGAIN = "TINY_LLM_ISA=plain before the command makes vectors four floats wide; -k runs one test alone\n"


def python(program: str, *args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    own = environment() | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    if cwd is not None:
        own["PYTHONPATH"] = os.pathsep.join([str(cwd / "src"), own["PYTHONPATH"]])
    command = [sys.executable, "-c", program, *args]
    return subprocess.run(command, cwd=cwd, env=own, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("code", [0, 1, 2, 130])
def test_an_exit_code_passes_through(code: int) -> None:
    done = python(f"{CHILD}os._exit({code})")
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE])
def test_a_crash_is_one_line(number: signal.Signals) -> None:
    done = python(f"{CHILD}os.kill(os.getpid(), {int(number)})")
    said = f"crashed ({signal.strsignal(number)}): in C++ an index out of range does that. {AGAIN}"
    assert (done.returncode, done.stderr) == (1, f"\ntest_sums.py::test_twice of task 1.1.1 {said}")


def test_a_process_that_was_killed_has_not_crashed() -> None:
    done = python(f"{CHILD}os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == 1
    assert done.stderr.endswith("of task 1.1.1 was killed: when memory runs out, Linux does that\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_passed_on_to_pytest(number: signal.Signals) -> None:
    ends = f"signal.signal({int(number)}, lambda *_: os._exit(7)); os.kill(os.getppid(), {int(number)})"
    assert python(f"{CHILD}{ends}; time.sleep(30)").returncode == 7


def test_a_signal_before_the_fork_has_returned_is_passed_on() -> None:
    slow = (
        "import os, time; fork = os.fork\n"
        "def slow():\n    child = fork()\n    time.sleep(bool(child)); return child\n"
        "os.fork = slow\n"
    )
    at_once = CHILD.replace("file = ", "signal.signal(signal.SIGTERM, lambda *_: os._exit(7))\nfile = ")
    ends = "os.kill(os.getppid(), signal.SIGTERM); time.sleep(30)"
    assert python(f"{slow}{at_once}{ends}").returncode == 7


def test_ctrl_c_is_answered_by_pytest_alone() -> None:
    ends = "os.kill(os.getppid(), signal.SIGINT); time.sleep(0.2); os._exit(130)"
    done = python(f"{CHILD}{ends}")
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize(
    ("dies", "where"),
    [
        ("tests/test_sums.py", "tests/test_sums.py::test_twice of task 1.1.1"),
        ("tests/conftest.py", "the start of the tests"),
    ],
)
def test_pytest_notes_what_it_runs(tree: Path, dies: str, where: str) -> None:
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    path = tree / dies
    source = path.read_text() if path.exists() else ""
    old = "assert llm.twice(2) == 4"
    path.write_text(source.replace(old, crash) if old in source else crash)
    done = python(GRADE, "-p", "no:cacheprovider", cwd=tree)
    assert done.returncode == 1
    assert (
        done.stderr
        == f"\n{where} crashed (Segmentation fault): in C++ an index out of range does that. {AGAIN}"
    )
    assert "Fatal Python error" not in done.stdout


def test_pytest_without_a_crash_says_nothing_more(tree: Path) -> None:
    done = python(GRADE, cwd=tree)
    assert "2 todo" in done.stdout
    assert (done.returncode, done.stderr) == (1, "")


def test_what_a_test_starts_does_not_inherit_the_note(tree: Path) -> None:
    path = tree / "tests" / "test_sums.py"
    source = path.read_text().replace(
        "assert llm.twice(2) == 4", "import os; assert 'TINY_LLM_RUNNING' not in os.environ"
    )
    path.write_text(source)
    assert "1 passed" in python(GRADE, "--task", "1.1.1", cwd=tree).stdout
