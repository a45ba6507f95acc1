"""`next`: where to write, what, and how it is tested."""

from dataclasses import replace

import pytest
from tests.helpers.trees import edit

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.course.learner.next_task import next_lines
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.record.desk import chapter_of, open_desk
from tiny_llm_lab.course.record.standing import Standing, State

pytest_plugins = ["pytester"]
SUMS = "src/tiny_llm/sums.py"
Capture = pytest.CaptureFixture[str]


def said(capsys):
    capsys.readouterr()
    assert main(["next"]) == 0
    return capsys.readouterr().out


def test_a_task_with_its_place_signatures_and_commands(clone, capsys):
    assert (
        said(capsys)
        == """\
next: 1.1.1 twice (day 1.1, One)

  src/tiny_llm/sums.py:5
    def twice(x: int, of: str = "a") -> int
    def thrice(x: int) -> int
  about 2 lines

  read:  book/src/one.md#task-111-twice-a-number
  test:  ./pdmw run test --task 1.1.1
  help:  ./pdmw run hint
"""
    )


def test_only_what_is_left_of_a_task_is_shown(clone, capsys):
    path = clone / "src/tiny_llm/sums.py"
    path.write_text(path.read_text().replace('raise NotImplementedError("task 1.1.1")', "return 2 * x", 1))
    out = said(capsys)
    assert "src/tiny_llm/sums.py:9\n" in out and "def thrice" in out and "def twice" not in out


def test_a_method_is_shown_with_its_class(grade, written, capsys):
    grade()
    out = said(capsys)
    assert out.startswith("next: 1.2.1 the counter (day 1.2, Two)\n\n  src/tiny_llm/counter.py:4\n")
    assert "    def Counter.__init__(self) -> None\n    def Counter.step(self) -> int\n" in out
    assert "  read:  book/src/two.md\n" in out, "a page without a section for the task"
    assert out.endswith("\noptional, nothing later needs them: 1.1.2 a fast sum (C++)\n")
    assert "hint" not in out, "the task has none"


def test_a_failing_and_an_ungraded_task_say_so(grade, written, capsys):
    edit(written, SUMS, "3 * x", "4 * x")
    assert "  you have written it, and it has not passed yet: run its tests\n" in said(capsys)
    grade()
    assert "  1 of its 2 tests failed when they ran last\n" in said(capsys)
    grade("-k", "thrice")
    assert "  its tests failed when they ran last\n" in said(capsys), "how many do, a part does not tell"


def test_what_changed_since_it_passed_is_named(grade, written, capsys):
    grade()
    edit(written, SUMS, "3 * x", "x * 3")
    out = said(capsys)
    assert "\nchanged since it passed: 1.1.1 twice\n  ./pdmw run test --task 1.1.1 grades it again\n" in out


def test_every_task_of_the_course_fits_80_columns():
    course = load_course()
    for task in course.tasks:
        states = {each.id: State.PASSED for each in course.tasks} | {task.id: State.TODO}
        lines = next_lines(replace(open_desk(course), standing=Standing(course, states)))
        # A path with an anchor may be longer than a line.
        assert all(len(line) <= 80 for line in lines if "read:" not in line), task.id


def test_a_section_on_the_second_page_of_a_day_is_found(clone):
    edit(clone, "course.toml", 'chapter = "two.md"', 'chapter = "two.md"\nmore = ["more.md"]')
    (clone / "book/src/more.md").write_text("## Task 1.2.2: twice\n")
    course = load_course(clone)
    assert chapter_of(course, course.task("1.2.2")) == "book/src/more.md#task-122-twice"
    assert chapter_of(course, course.task("1.2.1")) == "book/src/two.md"


def test_a_section_for_two_tasks_is_found(clone):
    course = load_course(clone)
    (clone / "book/src/two.md").write_text("## Tasks 1.2.1 and 1.2.2: both\n")
    for task in ("1.2.1", "1.2.2"):
        assert chapter_of(course, course.task(task)) == "book/src/two.md#tasks-121-and-122-both"
