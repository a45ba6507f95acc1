"""`explain`: all known mistakes of a task, tried on the tests that fail."""

from pathlib import Path

import pytest

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.course.learner import explain_command
from tiny_llm_lab.course.learner.explain_command import explanation
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.record import desk

STUB = 'raise NotImplementedError("task 1.1.1")'
NEXT = "next: ./pdmw run compare 1.1.1, or ./pdmw run hint 1.1.1"
ONE_ADDED, ONCE_TOO_OFTEN = "one is added", "it is added to itself once too often"


def with_mistakes(tree: Path, *swaps: tuple[str, str]) -> None:
    """Task 1.1.1 has these known mistakes, (says, returned instead of 2 * x), and three tests."""
    mistake = '[["1.1.1".twice]]\nsays = "{}"\nfind = "2 * x"\nswap = "{}"\n'
    other = mistake.format("another task", "3 * x").replace("1.1.1", "1.2.1")
    path = tree / "tests/known_mistakes.toml"
    path.write_text("".join(mistake.format(*swap) for swap in swaps) + other)
    path = tree / "tests/test_sums.py"
    more = '\n@pytest.mark.task("1.1.1")\n@pytest.mark.parametrize("x", [0, 5])\ndef test_more(llm, x):\n'
    path.write_text(f"{path.read_text()}{more}    assert llm.twice(x) == 2 * x\n")


def said(tree: Path, answer: str) -> list[str]:
    """What is said of an answer to task 1.1.1."""
    path = tree / "src/tiny_llm/sums.py"
    path.write_text(path.read_text().replace(STUB, answer))
    course = load_course(tree)
    return list(explanation(course, course.task("1.1.1")))


def test_the_mistake_that_reproduces_all_failures_is_named(tree: Path) -> None:
    with_mistakes(tree, (ONE_ADDED, "2 * x + 1"), (ONCE_TOO_OFTEN, "3 * x"))
    assert said(tree, "return x + x + x") == [f"this is what happens when {ONCE_TOO_OFTEN}"]


def test_mistakes_that_fail_alike_are_all_named(tree: Path) -> None:
    with_mistakes(tree, (ONE_ADDED, "2 * x + 1"), ("a", "3 * x"), ("b", "x * 3"))
    first, *rest = said(tree, "return x + x + x")
    assert first == "the failing tests cannot tell these mistakes apart; this is what happens when"
    assert rest == ["- a", "- b"]


def test_partial_fits_are_counted_the_best_first(tree: Path) -> None:
    with_mistakes(tree, (ONCE_TOO_OFTEN, "3 * x"), (ONE_ADDED, "2 * x + 1"), ("it is shifted", "x << 2"))
    # As with one added for 0 and 5, as with once too often for 2.
    assert said(tree, "return {0: 1, 2: 6, 5: 11}[x]") == [
        f"2 of 3 failed tests fail as when {ONE_ADDED}",
        f"1 of 3 failed tests fails as when {ONCE_TOO_OFTEN}",
        NEXT,
    ]


def test_a_mistake_that_fails_what_passes_is_no_whole_fit(tree: Path) -> None:
    with_mistakes(tree, ("it is squared", "x * x + x"), (ONE_ADDED, "2 * x + 1"))
    # For 2 and 5 as with one added, which is wrong for 0 as well.
    assert said(tree, "return 2 * x + (x > 0)") == [
        f"2 of 2 failed tests fail as when {ONE_ADDED}; but that also fails tests that pass with your code",
        NEXT,
    ]


def test_failures_like_none_name_what_to_do_next(tree: Path) -> None:
    with_mistakes(tree, (ONE_ADDED, "2 * x + 1"), (ONCE_TOO_OFTEN, "3 * x"))
    none = "3 tests failed, none as with any of the 2 known mistakes of this task"
    assert said(tree, "return 11 * x + 7") == [none, NEXT]


def test_without_a_failure_the_tests_are_counted(tree: Path) -> None:
    with_mistakes(tree, (ONE_ADDED, "2 * x + 1"))
    unwritten = "3 tests reached code that is still to write: ./pdmw run next says where"
    assert said(tree, STUB) == [unwritten]
    assert said(tree, "return x + x") == ["3 tests passed: there is nothing to explain"]


def test_code_that_cannot_be_imported_is_not_compared(tree: Path) -> None:
    with_mistakes(tree, (ONE_ADDED, "2 * x + 1"))
    (line,) = said(tree, "return 2 *")
    assert line.startswith("cannot run its tests: SyntaxError")


def test_a_day_stands_for_its_tasks_and_none_for_the_next(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(desk, "load_course", lambda: load_course(tree))
    monkeypatch.setattr(explain_command, "explanation", lambda course, task: iter([f"of {task.id}"]))
    for asked in ([], ["1.1"], ["1.1.1"]):
        assert main(["explain", *asked]) == 0
        assert capsys.readouterr().out == "1.1.1 twice\n  of 1.1.1\n"
    assert main(["explain", "1.2"]) == 0
    assert capsys.readouterr().out == "1.2.1 the counter\n  of 1.2.1\n"
    assert main(["explain", "1.3"]) == 2
    assert "there is no day '1.3'" in capsys.readouterr().err
