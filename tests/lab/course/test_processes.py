"""Tests that do not end, and tests in several processes."""

import os
import signal
import subprocess
import sys
import tomllib

import pytest
from tests.helpers.trees import course_files, edit
from tests.lab.course.test_plugin import DAY, grade

from tiny_llm_lab.course.grading import plugin
from tiny_llm_lab.course.grading.run_tests import pytest_command
from tiny_llm_lab.runtime.checkout import repository

__all__ = ["grade"]
pytest_plugins = ["pytester"]

IN_TWO = ("-p", "xdist", "-n", "2")


def graded(tree, *args):
    path = os.pathsep.join([str(tree / "src"), *sys.path])
    return subprocess.run(
        [*pytest_command("mine"), *args, "tests"],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )


def test_a_loop_without_end_fails_its_test_and_ends_the_run(grade, tree, monkeypatch):
    """A second test with the same loop would cost as much again."""
    edit(tree, "src/tiny_llm/sums.py", 'raise NotImplementedError("task 1.1.1")', "while True: pass")
    monkeypatch.setattr(plugin, "LIMIT_S", 1.0)
    done = grade()
    assert "1 failed, 1 deselected in" in done.stdout and "no other test ran" in done.stdout
    assert "it takes more than 1 s of processor time: look for an endless loop" in done.stdout
    assert "\nsrc/tiny_llm/sums.py:" in done.stdout, "the place of the loop"


WAIT = "__import__('threading').Event().wait()"
STEP, MADE = "assert counter.step() == 1", "return llm.Counter()"


@pytest.mark.parametrize(
    ("old", "new"), [(STEP, WAIT), (MADE, WAIT), (MADE, f"yield llm.Counter(); {WAIT}")], ids=str
)
def test_what_waits_forever_fails_in_one_line(old, new, grade, tree, monkeypatch):
    """In every phase of a test: an error between them would be pytest's, a page of its own code."""
    monkeypatch.setattr(plugin, "TICK_S", 0.01)
    (tree / "src/tiny_llm/sums.py").write_text(course_files("tree")["src/tiny_llm_ref/sums.py"])
    edit(tree, DAY, old, new)
    done = grade("--task", "1.2.1")
    assert "INTERNALERROR" not in done.stdout + done.stderr and "no other test ran" in done.stdout
    assert "it waits for something that never comes: 1.2 s without computing\n" in done.stdout
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0), "or it would fail what runs next"
    monkeypatch.setattr(plugin, "IDLE_S", 0.0)
    edit(tree, DAY, "wait()", "wait(2)")
    assert "never comes" not in grade("--task", "1.2.1").stdout, "it waits for its turn, on a busy machine"


def test_a_folder_without_room_for_pytests_cache_keeps_the_result(tree):
    """A file where the cache would be has the effect of a folder that may not be written, for root too."""
    (tree / ".pytest_cache").write_text("")
    settings = tomllib.loads((repository() / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    filters = "".join(f"\n    {each}" for each in settings["filterwarnings"])
    (tree / "pytest.ini").write_text(f"[pytest]\nfilterwarnings ={filters}\n")
    done = graded(tree)
    assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
    assert "TODO 1.1.1: write src/tiny_llm/sums.py:3 twice (1 test)" in done.stdout


def test_processes_report_as_one_does(tree):
    """Unwritten tasks, what was left out and a package that does not load, from two workers."""
    edit(tree, "tests/week_1/test_day_1.py", "def test_counter", "@pytest.mark.long\ndef test_counter")
    done = graded(tree, *IN_TWO)
    assert done.returncode == 1
    assert "TODO 1.1.1: write src/tiny_llm/sums.py:3 twice (1 test)" in done.stdout
    assert "○" in done.stdout and "1 todo" in done.stdout
    assert "\nskipped 1 tests of the lab, which need --solution ref\n" in done.stdout
    assert "\nskipped 1 long tests: --full runs them\n" in done.stdout
    (tree / "src/tiny_llm/sums.py").write_text("def twice(x:\n")
    done = graded(tree, *IN_TWO)
    assert done.returncode == 1
    assert done.stderr.count("cannot import tiny_llm") == 1
