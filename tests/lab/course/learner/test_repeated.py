"""One error that fails many tests is shown in full once."""

from pathlib import Path

import pytest
from tests.lab.course.learner.small_course import Grade
from tests.lab.course.trees import edit

pytest_plugins = ["pytester"]
SUMS = "src/tiny_llm/sums.py"


@pytest.mark.parametrize("ci", ["", "true"])  # pytest's summary gives each error in full where CI is set
def test_the_same_error_of_the_same_line_is_shown_in_full_once(
    grade: Grade, written: Path, monkeypatch: pytest.MonkeyPatch, ci: str
) -> None:
    monkeypatch.setenv("CI", ci)
    edit(written, SUMS, "return 3 * x", "return _times(x, 3)")
    edit(written, SUMS, "return x * n", "return x * m")
    out, _, summary = grade("--task", "1.1.1", "tests").partition("short test summary info")
    assert out.count(">       return x * m\n") == out.count("    return _times(x") == 1
    says = "src/tiny_llm/sums.py:16: NameError: name 'm' is not defined\n  as in tests/"
    assert out.count(says) == 1 and "::test_twice\n" in out
    assert "2 failed" in summary


def test_errors_of_other_lines_and_complaints_of_tests_are_shown_in_full(grade: Grade, written: Path) -> None:
    edit(written, SUMS, "return 3 * x", "return 3 * m")
    edit(written, SUMS, "return x * n", "return x * m")
    out = grade("--task", "1.1.1", "tests")
    assert "return x * m\n" in out and "return 3 * m\n" in out and "  as in" not in out
    edit(written, SUMS, "return 3 * m", "return 4 * x")
    edit(written, SUMS, "return x * m", "return x * n + 1")
    out = grade("--task", "1.1.1", "tests")
    assert out.count(">       assert llm.t") == 2 and "  as in" not in out
