"""Checks that the course can be done as it is written, each on a course that breaks it."""

import pytest
from tests.helpers.trees import course_files, edit, write_files

from tiny_llm_lab.course.manifest import load_course
from tools.checking.chapters import chapter_faults


@pytest.fixture
def literal(tmp_path):
    """The root of a sound course."""
    return write_files(tmp_path, course_files("literal"))


def test_a_sound_course_is_done_as_it_is_written(literal):
    course = load_course(literal)
    assert list(chapter_faults(course)) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("book/src/3.md", "`2 passed`", "`3 passed`", "1.3.1: page says 3 passed, got 2 passed"),
        ("book/src/3.md", "`2 passed`", "`1 passed, 1 todo`", "says 1 passed, 1 todo, got 2 passed"),
        ("book/src/3.md", "Expect", "See", "1.3.1: page says no number, got 2 passed"),
        ("book/src/3.md", "`Counter`", "`step` and `back`", "1.3.1: the page asks for no Counter.big_step"),
        ("course.toml", 'calls = ["checked"]', "", "1.3.1: page says 2 passed, got 1 passed, 1 failed"),
    ],
)
def test_a_page_that_cannot_be_followed_is_told(literal, file, old, new, says):
    edit(literal, file, old, new)
    found = list(chapter_faults(load_course(literal), "1.3"))
    assert says in "\n".join(found), found


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("checked(llm.times(2, 3))", "needs task 1.4.1, which comes later"),
        ("times(2, 3, more=0)", "times() got an unexpected keyword argument 'more'"),
    ],
)
def test_a_test_that_needs_a_later_task_is_told(literal, call, says):
    edit(literal, "tests/week_1/test_day_1.py", "llm.times(2, 3) == 6", f"llm.{call} == 6")
    found = list(chapter_faults(load_course(literal), "1.1"))
    assert found[0] == "1.1.1: page says 1 passed, got 1 failed"
    assert says in found[1]
