"""Tests that do not end, and tests in several processes."""

import os
import subprocess
import sys
import tomllib

from tests.helpers.trees import edit
from tests.lab.course.test_plugin import grade

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


def test_a_loop_without_end_fails_its_test_and_ends_the_run(grade, tree):
    """A second test with the same loop would cost as much again."""
    edit(tree, "src/tiny_llm/sums.py", 'raise NotImplementedError("task 1.1.1")', "while True: pass")
    done = grade("-p", "timeout", "--time-limit", "1")  # of processor time
    assert "1 failed, 1 deselected in" in done.stdout and "no other test ran" in done.stdout
    assert "it takes more than 1 s of processor time: look for a loop that never ends" in done.stdout
    assert "\nsrc/tiny_llm/sums.py:" in done.stdout, "the place of the loop"


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
