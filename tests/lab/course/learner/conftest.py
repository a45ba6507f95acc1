"""A clone of a small course, and its grading."""

import pytest
from tests.helpers.trees import course_files, write_files
from tests.lab.course.conftest import grading

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.course.learner import next_task
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.record import standing
from tiny_llm_lab.course.starter import reset, stubs


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """The root of the clone, in which the commands of a learner work."""
    write_files(tmp_path, course_files("small"))
    for module in (stubs, reset, standing, next_task):
        monkeypatch.setattr(module, "load_course", lambda: load_course(tmp_path))
    return tmp_path


@pytest.fixture
def grade(clone, pytester, monkeypatch):
    """Run pytest on all tests of the clone, or as told; what it prints."""
    run = grading(clone, pytester, monkeypatch)

    def said(*args):
        done = run(*(args or ("tests",)))
        return f"{done.stdout}{done.stderr}"

    return said


@pytest.fixture
def written(clone):
    """The clone with task 1.1.1 written."""
    (clone / "src/tiny_llm/sums.py").write_text(course_files("small")["src/tiny_llm_ref/sums.py"])
    return clone


@pytest.fixture
def untouched(tmp_path, monkeypatch, capsys):
    """The clone of a course that has a reference, with its starter as generated."""
    write_files(tmp_path, course_files("desk"))
    for module in (stubs, reset, standing, next_task):
        monkeypatch.setattr(module, "load_course", lambda: load_course(tmp_path))
    assert main(["stubs"]) == 0
    capsys.readouterr()
    return tmp_path
