"""Trials that share a process: each sees the package as it alone changes it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tiny_llm_lab.course.checking import trial_pool
from tiny_llm_lab.course.checking.trial_pool import TrialPool, results_of
from tiny_llm_lab.course.checking.worker import Result, Trial


@pytest.fixture
def pool() -> Iterator[TrialPool]:
    pool = TrialPool(2.0)
    yield pool
    pool.close()


def trial(tree: Path, body: str | None) -> Trial:
    """The test of `twice`, on a reference with another body of it."""
    origin = tree / "src/tiny_llm_ref"
    text = (origin / "sums.py").read_text()
    assert text.count("return 2 * x") == 1
    changed = {} if body is None else {"sums.py": text.replace("return 2 * x", body)}
    args = ("tests/test_sums.py::test_twice", "--solution", "ref", "-p", "no:hypothesispytest")
    return Trial(tree, origin, origin.name, changed, args)


def said(result: Result | TimeoutError) -> str:
    if isinstance(result, TimeoutError):
        return "the time limit"
    [test] = result.tests
    return test.headline if test.outcome == "failed" else test.outcome


def test_a_trial_sees_its_own_change_alone(pool: TrialPool, tree: Path) -> None:
    # All of one length: compiled code is looked up by length and time.
    trials = [trial(tree, body) for body in ("return 3 * x", "return 5 * x", None, "return 7 * x")]
    results = pool.run(trials)
    starts = [said(result)[:14] for result in results]
    assert starts == ["assert 6 == 4", "assert 10 == 4", "passed", "assert 14 == 4"]


def test_a_trial_without_an_end_is_stopped_and_the_next_one_runs(pool: TrialPool, tree: Path) -> None:
    loop = "\n    while True: pass"
    results = pool.run([trial(tree, body) for body in ("return 3 * x", loop, "return 5 * x")])
    assert [said(result)[:14] for result in results] == ["assert 6 == 4", "the time limit", "assert 10 == 4"]


def test_a_process_that_dies_is_an_error_of_its_trial(pool: TrialPool, tree: Path) -> None:
    dies = "import os; os._exit(3)"
    died, after = pool.run([trial(tree, dies), trial(tree, None)])
    assert isinstance(died, Result) and died.error == "the process that ran the tests died"
    assert said(after) == "passed"


def test_what_changes_no_python_has_a_process_of_its_own(
    pool: TrialPool, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone: list[tuple[str, ...]] = []

    def noted(trials: list[Trial], limit_s: float) -> Iterator[Result]:
        alone.extend(tuple(trial.changed) for trial in trials)
        return (Result(error="alone") for _ in trials)

    monkeypatch.setattr(trial_pool, "run_trials", noted)
    kernel = replace(trial(tree, None), changed={"kernels/sums.cpp": ""})
    trials = [trial(tree, "return 3 * x"), kernel, trial(tree, "return 5 * x"), kernel]
    first, second, third, fourth = results_of(trials, pool, 2.0)
    assert alone == [("kernels/sums.cpp",)] * 2
    assert [said(first)[:14], said(third)[:14]] == ["assert 6 == 4", "assert 10 == 4"]
    assert second == fourth == Result(error="alone"), "the results come in the order of the trials"
