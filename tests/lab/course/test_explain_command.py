"""`explain`: all known mistakes of a task, tried on the tests that fail."""

from dataclasses import replace

import pytest

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.course.grading.sandbox import Result, TestResult, Trial, comparable, rounded
from tiny_llm_lab.course.grading.screening import Fit
from tiny_llm_lab.course.learner import explain_command
from tiny_llm_lab.course.learner.explain_command import explanation
from tiny_llm_lab.course.learner.variants import variants
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.record import standing

STUB = 'raise NotImplementedError("task 1.1.1")'
NEXT = "next: ./pdmw run compare 1.1.1, or ./pdmw run hint 1.1.1"
ONE_ADDED, ONCE_TOO_OFTEN = "one is added", "it is added to itself once too often"
KINDS = r"""
[parts]
number = '\d+'

[[kind]]
find = '(<number>) \* (\w)'
swap = '\1 + \2'
says = "{2} is added to {1}"

[[kind]]
find = '(\w+) \* (\w)'
swap = '\1 - \2'
says = "{2} is subtracted from {1}"

[[guess]]
find = '(<number>)'
swap = '<other>'
says = "{2} is taken in place of {1}"
"""


def with_mistakes(tree, *swaps):
    """Task 1.1.1 has these known mistakes, (says, returned instead of 2 * x), and three tests."""
    mistake = '[["1.1.1".twice]]\nsays = "{}"\nfind = "2 * x"\nswap = "{}"\n'
    other = mistake.format("another task", "3 * x").replace("1.1.1", "1.2.1")
    path = tree / "tests/known_mistakes.toml"
    path.write_text("".join(mistake.format(*swap) for swap in swaps) + other)
    (tree / "tests/mistake_kinds.toml").write_text(KINDS)
    path = tree / "tests/week_1/test_day_1.py"
    more = '\n@pytest.mark.task("1.1.1")\n@pytest.mark.parametrize("x", [0, 5])\ndef test_more(llm, x):\n'
    path.write_text(f"{path.read_text()}{more}    assert llm.twice(x) == 2 * x\n")


def result_of(trial):
    """What pytest finds in a trial of task 1.1.1, which asks for twice 2, 0 and 5."""
    names = {}
    try:
        exec(trial.changed.get("sums.py", (trial.origin / "sums.py").read_text()), names)
    except SyntaxError as error:
        return Result(error=f"SyntaxError: {error}")
    found = []
    for test, x in {"test_twice": 2, "test_more[0]": 0, "test_more[5]": 5}.items():
        try:
            got = names["twice"](x)
            found.append(TestResult(test, "passed" if got == 2 * x else "failed", f"assert {got} == {2 * x}"))
        except NotImplementedError as error:
            found.append(TestResult(test, "todo", str(error)))
        except NameError as error:
            found.append(TestResult(test, "failed", f"NameError: {error}"))
    asked = {each.test for each in found} & {*trial.pytest_args}
    return Result(tuple(each for each in found if not asked or each.test in asked))


def fits_of(course, variants, wanted, limit_s, counts):
    """As `screened`, of twice 2, 0 and 5; no variant is tried without time."""
    fits = []
    for variant in variants if limit_s else ():
        trial = Trial(course.root, course.reference, "tiny_llm_ref", {"sums.py": variant.text}, ())
        said = {each.test: each.message * (each.outcome == "failed") for each in result_of(trial).tests}
        differing = [says for test, says in wanted.items() if said[test] != says]
        how_many = "all" if not differing else "some" if all(differing) else "more"
        same = (i for i, (test, says) in enumerate(wanted.items()) if says and said[test] == says)
        fits.append(Fit(variant.says, how_many, frozenset(same)))
    return fits


@pytest.fixture
def at_once(monkeypatch):
    """Trials take no process of their own."""
    monkeypatch.setattr(explain_command, "run_trials", lambda trials, limit_s=0: map(result_of, trials))
    monkeypatch.setattr(explain_command, "screened", fits_of)


quickly = pytest.mark.usefixtures("at_once")
ADDS, DOUBLES = (ONE_ADDED, "2 * x + 1"), (ONCE_TOO_OFTEN, "3 * x")
# Known mistakes, an answer to the task, and what is said of it.
SAID = {
    "all that fail alike": (
        [ADDS, ("a", "3 * x"), ("b", "x * 3")],
        "return x + x + x",
        [
            "they fail in the same way with each of these mistakes, and cannot tell them apart:",
            "- a",
            "- b",
        ],
    ),
    # As with one added for 0 and 5, as with once too often for 2.
    "partial fits, the best first": (
        [DOUBLES, ADDS, ("it is shifted", "x << 2")],
        "return {0: 1, 2: 6, 5: 11}[x]",
        [
            f"2 of 3 failed tests fail as when {ONE_ADDED}",
            f"1 of 3 failed tests fails as when {ONCE_TOO_OFTEN}",
            NEXT,
        ],
    ),
    # For 2 and 5 as with one added, which is wrong for 0 as well.
    "one that fails what passes": (
        [("it is squared", "x * x + x"), ADDS],
        "return 2 * x + (x > 0)",
        [
            f"2 of 2 failed tests fail as when {ONE_ADDED}; "
            "but that also fails tests that pass with your code",
            NEXT,
        ],
    ),
    "none": (
        [ADDS, DOUBLES],
        "return 11 * x + 7",
        ["none fails as with any of the 2 known mistakes that were tried", NEXT],
    ),
}


def said(tree, answer, limit_s=600):
    """What is said of an answer to task 1.1.1, behind what the first failed test says itself."""
    path = tree / "src/tiny_llm/sums.py"
    path.write_text(path.read_text().replace(STUB, answer))
    course = load_course(tree)
    lines = list(explanation(course, course.task("1.1.1"), limit_s))
    if " failed. The first says: " not in lines[0]:
        return lines
    return lines[1:]


def test_the_mistake_that_reproduces_all_failures_is_named(tree):
    with_mistakes(tree, (ONE_ADDED, "2 * x + 1"), (ONCE_TOO_OFTEN, "3 * x"))
    assert said(tree, "return x + x + x") == [f"they fail in the same way when {ONCE_TOO_OFTEN}"]


@quickly
def test_the_message_of_the_first_failed_test_comes_first(tree):
    with_mistakes(tree)
    path = tree / "src/tiny_llm/sums.py"
    path.write_text(path.read_text().replace(STUB, "return x + 3"))
    course = load_course(tree)
    assert next(explanation(course, course.task("1.1.1"))) == "3 tests failed. The first says: assert 5 == 4"


@quickly
def test_where_no_kind_fits_another_value_is_guessed(tree):
    with_mistakes(tree, ADDS)
    line = "they fail in the same way when `x` is taken in place of `2`, in `twice`"
    assert said(tree, "return x**2") == [line]


@quickly
def test_mistakes_that_are_alike_are_told_together(tree):
    with_mistakes(tree, ("a", "2 * x + 1"), ("b", "2 * x + x // x if x else 1"))
    lines = ["2 of 3 failed tests fail as when a or b", NEXT]
    assert said(tree, "return {0: 1, 2: 6, 5: 11}[x]") == lines


def test_a_slow_test_is_not_compared(tree, monkeypatch):
    def results(trials):
        for result in map(result_of, trials):
            yield Result(tuple(replace(each, took_s=9 * ("5" in each.test)) for each in result.tests))

    with_mistakes(tree, ADDS)
    monkeypatch.setattr(explain_command, "run_trials", lambda trials, limit_s=0: results(trials))
    monkeypatch.setattr(explain_command, "screened", fits_of)
    line = f"they fail in the same way when {ONE_ADDED}"
    assert said(tree, "return 2 * x + 1 if x < 5 else 7") == [line]


@quickly
def test_a_mistake_that_was_not_tried_on_what_passes_is_no_whole_fit(tree, monkeypatch):
    with_mistakes(tree, (ONCE_TOO_OFTEN, "3 * x"))  # 0 passes
    fits = {False: [], True: [Fit(ONCE_TOO_OFTEN, "unknown", frozenset({0, 1}))]}
    monkeypatch.setattr(explain_command, "screened", lambda *_, counts: fits[counts])
    assert said(tree, "return 3 * x") == [f"2 of 2 failed tests fail as when {ONCE_TOO_OFTEN}", NEXT]


@quickly
def test_without_a_known_mistake_a_small_change_is_named(tree):
    with_mistakes(tree, ADDS, DOUBLES)
    line = "they fail in the same way when `x` is added to `2`, in `twice`"
    assert said(tree, "two = 2\n    return x + two") == [line]


def test_a_small_change_tells_no_name_that_a_learner_has_not_written(tree):
    with_mistakes(tree)
    course = load_course(tree)
    found = list(variants(course, course.task("1.1.1"), "kind", {"y"}.__contains__))
    assert [each.says for each in found] == [
        "a value is added to `2`, in `twice`",
        "a value is subtracted from `2`, in `twice`",
    ]
    assert "return 2 - x" in found[1].text and found[1].symbol == "twice"


@quickly
def test_a_mistake_in_no_function_has_a_process_of_its_own(tree):
    with_mistakes(tree)
    path = tree / "tests/known_mistakes.toml"
    row = f'[["1.1.1"."sums.py"]]\nsays = "{ONE_ADDED}"\nfind = "2 * x"\nswap = "2 * x + 1"\n'
    path.write_text(row + path.read_text())
    assert said(tree, "return x + x + 1") == [f"they fail in the same way when {ONE_ADDED}"]


@quickly
def test_what_no_mistake_can_do_is_said_at_once(tree, monkeypatch):
    with_mistakes(tree, (ONE_ADDED, "2 * x + 1"))
    monkeypatch.setattr(explain_command, "screened", lambda *_, **__: pytest.fail("a mistake was tried"))
    (line,) = said(tree, "return 2 * y")
    assert line.startswith("no known mistake fails like this")


@quickly
def test_without_a_failure_the_tests_are_counted(tree):
    with_mistakes(tree, (ONE_ADDED, "2 * x + 1"))
    unwritten = "3 tests reached code that is still to write: ./pdmw run next says where"
    assert said(tree, STUB) == [unwritten]
    assert said(tree, "return x + x") == ["3 tests passed: there is nothing to explain"]


def test_code_that_cannot_be_imported_is_not_compared(tree):
    with_mistakes(tree, (ONE_ADDED, "2 * x + 1"))
    (line,) = said(tree, "return 2 *")
    assert line.startswith("cannot run its tests: SyntaxError") and "(sums.py, line " in line


def test_a_day_stands_for_its_tasks_and_none_for_the_next(tree, monkeypatch, capsys):
    monkeypatch.setattr(standing, "load_course", lambda: load_course(tree))
    monkeypatch.setattr(explain_command, "explanation", lambda course, task, limit_s: iter([f"of {task.id}"]))
    for asked in ([], ["1.1"], ["1.1.1"]):
        assert main(["explain", *asked]) == 0
        assert capsys.readouterr().out == "1.1.1 twice\n  of 1.1.1\n"
    assert main(["explain", "1.2"]) == 0
    assert capsys.readouterr().out == "1.2.1 the counter\n  of 1.2.1\n"
    assert main(["explain", "1.3"]) == 2
    assert "there is no day '1.3'" in capsys.readouterr().err


@quickly
@pytest.mark.parametrize(("mistakes", "answer", "lines"), SAID.values(), ids=SAID)
def test_what_is_said_of_an_answer(tree, mistakes, answer, lines):
    with_mistakes(tree, *mistakes)
    assert said(tree, answer) == lines


@quickly
def test_no_mistake_is_tried_when_the_time_is_up(tree):
    with_mistakes(tree, ADDS, DOUBLES)
    tried = "tried 0 of 2 known mistakes in 0 s of processor time: a larger --limit tries the others"
    assert said(tree, "return 3 * x", limit_s=0)[-2:] == [tried, NEXT]


def test_what_differs_by_chance_is_no_part_of_a_message():
    assert comparable("[<tiny_llm.ca...7f98a674>] == 0x7f98") == comparable("[<tiny_llm_re...7f12>] == 0x12")
    assert comparable("[<tiny_llm.cache.Batch...90>], 1") == comparable("[<tiny_llm_ref.cache.B..., 1")
    assert comparable("[Event(p...51.32)] at_s=51.32") == comparable("[Event(pr...7.5)] at_s=7.5")
    assert comparable("<a> == 1...2, b(3)") == "<a> == 1...2, b(3)"


def test_numbers_of_a_message_have_four_digits():
    assert rounded("assert 1.2999999999999998 == 1.1") == rounded("assert 1.3 == 1.1")
    assert rounded("expected 0.98934, got 1.5e-07") == "expected 0.9893, got 1.5e-07"
    assert rounded("10 of 12345 differ, 1.234") == "10 of 12345 differ, 1.234"
