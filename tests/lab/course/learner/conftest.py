"""A clone of a small course, and its grading."""

import sys

import pytest
from tests.helpers.trees import write_files
from tests.lab.course.learner.desk_course import FILES as DESK_FILES
from tests.lab.course.learner.small_course import ANSWER, FILES

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.course.learner import next_task
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.record import standing
from tiny_llm_lab.course.starter import reset, stubs


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """The root of the clone, in which the commands of a learner work."""
    write_files(tmp_path, FILES)
    for module in (stubs, reset, standing, next_task):
        monkeypatch.setattr(module, "load_course", lambda: load_course(tmp_path))
    return tmp_path


@pytest.fixture
def grade(clone, pytester, monkeypatch):
    """Run pytest on the clone, in this process, on all of its tests or as told; what it prints."""

    def run(*args):
        for name in list(sys.modules):
            if name.partition(".")[0] == "tiny_llm":
                monkeypatch.delitem(sys.modules, name)
        done = pytester.runpytest_inprocess("-p", "tiny_llm_lab.course.grading.plugin", *(args or ("tests",)))
        return f"{done.stdout.str()}\n{done.stderr.str()}"

    monkeypatch.chdir(clone)
    monkeypatch.syspath_prepend(str(clone / "src"))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # edits within a second would not be seen
    return run


@pytest.fixture
def written(clone):
    """The clone with task 1.1.1 written."""
    (clone / "src/tiny_llm/sums.py").write_text(ANSWER)
    return clone


@pytest.fixture
def untouched(tmp_path, monkeypatch, capsys):
    """The clone of a course that has a reference, with its starter as generated."""
    write_files(tmp_path, DESK_FILES)
    for module in (stubs, reset, standing, next_task):
        monkeypatch.setattr(module, "load_course", lambda: load_course(tmp_path))
    assert main(["stubs"]) == 0
    capsys.readouterr()
    return tmp_path
