"""A course of two days, small enough to break on purpose."""

import sys
from dataclasses import dataclass

import pytest
from tests.helpers.trees import course_files, write_files


@pytest.fixture
def tree(tmp_path):
    """The root of its repository."""
    return write_files(tmp_path, course_files("tree"))


@dataclass(frozen=True)
class Graded:
    """The end of a pytest run."""

    returncode: int
    stdout: str
    stderr: str


def grading(root, pytester, monkeypatch):
    """Runs pytest on the course in `root`, in this process: a new one for every test would take a minute."""

    def run(*args):
        for name in list(sys.modules):
            if name.partition(".")[0] in ("tiny_llm", "tiny_llm_ref"):
                monkeypatch.delitem(sys.modules, name)
        done = pytester.runpytest_inprocess(
            "-p", "tiny_llm_lab.course.grading.plugin", *args, no_reraise_ctrlc=True
        )
        return Graded(int(done.ret), done.stdout.str() + "\n", done.stderr.str())

    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(str(root / "src"))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # edits within a second would not be seen
    return run
