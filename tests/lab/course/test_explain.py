"""Which known mistake a failing run names, and when it names none."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.lab.course.test_plugin import Run, edit, grade

from tiny_llm_lab.course.checking import explain
from tiny_llm_lab.course.checking.sandbox import run_trials
from tiny_llm_lab.course.checking.trial_pool import TrialPool
from tiny_llm_lab.course.checking.worker import Result, Trial
from tiny_llm_lab.course.manifest import Mistake, load_course

__all__ = ["grade"]
pytest_plugins = ["pytester"]

ENOUGH_TIME = ("--explain-for", "600")  # the usual seconds may not do on a busy machine

MISTAKES = """
[[mistake]]
task = "1.1.1"
says = "one is added"
file = "sums.py"
find = "return 2 * x"
swap = "return 2 * x + 1"
[[mistake]]
task = "1.1.1"
says = "it is added to itself once too often"
file = "sums.py"
find = "return 2 * x"
swap = "return 3 * x"
"""


def test_a_failure_that_a_known_mistake_reproduces_is_explained(grade: Run, tree: Path) -> None:
    (tree / "tests/known_mistakes.toml").write_text(MISTAKES)
    edit(tree, "src/tiny_llm/sums.py", 'raise NotImplementedError("task 1.1.1")', "return x + x + x")
    done = grade("--day", "1.1", *ENOUGH_TIME)
    assert "This is what happens when it is added to itself once too often." in done.stdout
    assert "one is added" not in done.stdout


def _with_a_second_test(tree: Path, body: str) -> None:
    (tree / "tests/known_mistakes.toml").write_text(MISTAKES)
    path = tree / "tests/test_sums.py"
    path.write_text(path.read_text() + f'\n@pytest.mark.task("1.1.1")\ndef test_more(llm):\n    {body}\n')


def test_a_mistake_must_explain_all_failures_of_its_task(grade: Run, tree: Path) -> None:
    _with_a_second_test(tree, "assert llm.twice(0) == 0")
    # The first test fails as with three times x, the second does not.
    edit(tree, "src/tiny_llm/sums.py", 'raise NotImplementedError("task 1.1.1")', "return 6")
    done = grade("--day", "1.1", *ENOUGH_TIME)
    assert "2 failed" in done.stdout
    assert "his is what happens" not in done.stdout


def test_a_mistake_that_fails_what_passed_is_not_named(grade: Run, tree: Path) -> None:
    _with_a_second_test(tree, "assert llm.twice(5) == 10")
    # The first test fails as with three times x, which fails the second as well.
    edit(
        tree,
        "src/tiny_llm/sums.py",
        'raise NotImplementedError("task 1.1.1")',
        "return 3 * x if x == 2 else 10",
    )
    done = grade("--day", "1.1", *ENOUGH_TIME)
    assert "1 failed, 1 passed" in done.stdout
    assert "his is what happens" not in done.stdout


def test_mistakes_that_fail_alike_are_not_named(grade: Run, tree: Path) -> None:
    edit(tree, "tests/test_sums.py", "assert llm.twice(2) == 4", "assert not llm.twice(1) - 2")
    _with_a_second_test(tree, "pass")
    path = tree / "tests/known_mistakes.toml"
    path.write_text(path.read_text().replace("2 * x + 1", "3 * x + 0"))
    edit(tree, "src/tiny_llm/sums.py", 'raise NotImplementedError("task 1.1.1")', "return x + x + x")
    done = grade("--day", "1.1", *ENOUGH_TIME)
    assert "1 failed" in done.stdout
    assert "his is what happens" not in done.stdout


def test_a_mistake_is_named_at_the_end_as_well(grade: Run, tree: Path) -> None:
    _with_a_second_test(tree, "assert llm.twice(5) == 10")
    edit(tree, "src/tiny_llm/sums.py", 'raise NotImplementedError("task 1.1.1")', "return x + x + x")
    says = "this is what happens when it is added to itself once too often"
    assert grade("--day", "1.1", *ENOUGH_TIME).stdout.count(f"task 1.1.1: {says}\n") == 1


def test_a_failure_of_its_own_is_not_explained(grade: Run, tree: Path) -> None:
    (tree / "tests/known_mistakes.toml").write_text(MISTAKES)
    edit(tree, "src/tiny_llm/sums.py", 'raise NotImplementedError("task 1.1.1")', "return 11 * x")
    done = grade("--day", "1.1", *ENOUGH_TIME)
    assert "1 failed" in done.stdout
    assert "This is what happens" not in done.stdout
    assert "not explained" not in done.stdout, "all of them were tried"


def test_an_explanation_that_takes_too_long_is_left_out(grade: Run, tree: Path) -> None:
    (tree / "tests/known_mistakes.toml").write_text(MISTAKES)
    edit(tree, "src/tiny_llm/sums.py", 'raise NotImplementedError("task 1.1.1")', "return x + x + x")
    done = grade("--day", "1.1", "--explain-for", "0")
    assert "1 failed" in done.stdout
    assert "his is what happens" not in done.stdout


def test_a_mistake_that_was_not_tried_in_time_might_be_the_one(
    grade: Run, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "tests/known_mistakes.toml").write_text(MISTAKES)
    edit(tree, "src/tiny_llm/sums.py", 'raise NotImplementedError("task 1.1.1")', "return x + x + x")
    now = 0.0

    def all_but_the_first(pool: TrialPool, trials: list[Trial], until: float) -> list[Result | TimeoutError]:
        nonlocal now
        now = until
        return [TimeoutError(), *run_trials(trials[1:])]

    monkeypatch.setattr(TrialPool, "run", all_but_the_first)
    monkeypatch.setattr(explain, "time", SimpleNamespace(monotonic=lambda: now))
    said = grade("--day", "1.1").stdout
    assert "his is what happens" not in said
    tries = "./pdmw run explain 1.1.1 tries all its known mistakes"
    assert said.count(f"task 1.1.1: not explained in 4 s; {tries}\n") == 1


def test_the_earliest_task_is_explained_first(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def fitting(self: explain.Explainer, pool: TrialPool, task: str, *rest: object) -> list[Mistake]:
        tried.append(task)
        return []

    monkeypatch.setattr(explain.Explainer, "_fitting", fitting)
    explainer = explain.Explainer.__new__(explain.Explainer)
    explainer._course, explainer._failed = load_course(), {"2.7.7": [], "2.7.3": []}
    explainer._explain(TrialPool.__new__(TrialPool), 0.0)
    assert tried == ["2.7.3", "2.7.7"], "what is wrong in 2.7.3 fails the tests of 2.7.7 too"
