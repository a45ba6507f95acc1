"""What a graded run says last, and an error that fails many tests once."""

import pytest
from tests.helpers.trees import edit

from tiny_llm_lab.course.record import closing

pytest_plugins = ["pytester"]
SUMS = "src/tiny_llm/sums.py"


def test_after_green_what_is_next_and_how_to_compare(grade, written):
    out = grade("--task", "1.1.1", "tests")
    assert "\nnext: 1.2.1 the counter, src/tiny_llm/counter.py:4\n" in out
    assert "\ncompare with the reference: ./pdmw run diff 1.1.1\n" in out
    assert "\ncompare with the reference: ./pdmw run diff 1.1\n" in grade("--day", "1.1", "tests")


def test_a_green_part_of_a_task_is_not_to_be_compared(grade, written):
    out = grade("--task", "1.1.1", "-k", "thrice", "tests")
    assert "\nnext: 1.1.1 twice, src/tiny_llm/sums.py:2\n" in out and "run diff" not in out


def test_after_red_each_task_that_failed_and_where_help_is(grade, written):
    edit(written, SUMS, "3 * x", "4 * x")
    out = grade("--day", "1.1", "tests")
    assert "\ntask 1.1.1: ./pdmw run hint 1.1.1 · book/src/one.md#task-111-twice-a-number\n" in out
    assert "next:" not in out and "run diff" not in out
    assert out.index("test_thrice") < out.index("task 1.1.1: ./pdmw")
    assert "\n./pdmw run explain 1.1.1 names a known mistake" in out
    edit(written, SUMS, "x * n", "x + n + 1")
    assert grade("--day", "1.1", "tests").count("run hint 1.1.1") == 1, "two tests of a task failed"


def test_the_last_day_of_a_week_names_what_was_built(grade, written):
    (written / "src/tiny_llm/counter.py").write_text("class Counter:\n    def step(self): return 1\n")
    line = "the week is done: book/src/week1-end.md shows what you have built\n"
    assert line not in grade("--day", "1.2", "tests"), "there is no such page"
    (written / "book/src/week1-end.md").write_text("# Built\n")
    assert line not in grade("--day", "1.1", "tests")
    assert line not in grade("--task", "1.2.1", "-k", "nothing", "tests")
    out = grade("--day", "1.2", "tests")
    assert line in out and "next: nothing, you have written all of the Python" in out


def test_on_a_narrow_terminal_the_chapter_has_its_own_line(grade, written, monkeypatch):
    edit(written, SUMS, "3 * x", "4 * x")
    monkeypatch.setattr(closing, "reporter_width", lambda _: 60)
    out = grade("--day", "1.1", "tests")
    assert "\ntask 1.1.1: ./pdmw run hint 1.1.1\nbook/src/one.md#task-111-twice-a-number\n" in out


@pytest.mark.parametrize("ci", ["", "true"])  # pytest's summary gives each error in full where CI is set
def test_the_same_error_of_the_same_line_is_shown_in_full_once(grade, written, monkeypatch, ci):
    monkeypatch.setenv("CI", ci)
    edit(written, SUMS, "return 3 * x", "return _times(x, 3)")
    edit(written, SUMS, "return x * n", "return x * m")
    out, _, summary = grade("--task", "1.1.1", "tests").partition("short test summary info")
    assert out.count(">       return x * m\n") == out.count("    return _times(x") == 1
    says = "src/tiny_llm/sums.py:16: NameError: name 'm' is not defined\n  as in tests/"
    assert out.count(says) == 1 and "::test_twice\n" in out
    assert "2 failed" in summary


def test_errors_of_other_lines_and_complaints_of_tests_are_shown_in_full(grade, written):
    edit(written, SUMS, "return 3 * x", "return 3 * m")
    edit(written, SUMS, "return x * n", "return x * m")
    out = grade("--task", "1.1.1", "tests")
    assert "return x * m\n" in out and "return 3 * m\n" in out and "  as in" not in out
    edit(written, SUMS, "return 3 * m", "return 4 * x")
    edit(written, SUMS, "return x * m", "return x * n + 1")
    out = grade("--task", "1.1.1", "tests")
    assert out.count(">       assert llm.t") == 2 and "  as in" not in out
