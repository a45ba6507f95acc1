"""Which known mistake a failing run names, and when it names none."""

from pathlib import Path

from tests.lab.course.test_plugin import Run, edit, grade

__all__ = ["grade"]
pytest_plugins = ["pytester"]


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
    done = grade("--day", "1.1")
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
    done = grade("--day", "1.1")
    assert "2 failed" in done.stdout
    assert "his is what happens" not in done.stdout


def test_mistakes_that_fail_alike_are_not_named(grade: Run, tree: Path) -> None:
    edit(tree, "tests/test_sums.py", "assert llm.twice(2) == 4", "assert not llm.twice(1) - 2")
    _with_a_second_test(tree, "pass")
    path = tree / "tests/known_mistakes.toml"
    path.write_text(path.read_text().replace("2 * x + 1", "3 * x + 0"))
    edit(tree, "src/tiny_llm/sums.py", 'raise NotImplementedError("task 1.1.1")', "return x + x + x")
    done = grade("--day", "1.1")
    assert "1 failed" in done.stdout
    assert "his is what happens" not in done.stdout


def test_a_mistake_is_named_at_the_end_as_well(grade: Run, tree: Path) -> None:
    _with_a_second_test(tree, "assert llm.twice(5) == 10")
    edit(tree, "src/tiny_llm/sums.py", 'raise NotImplementedError("task 1.1.1")', "return x + x + x")
    says = "this is what happens when it is added to itself once too often"
    assert grade("--day", "1.1").stdout.count(f"task 1.1.1: {says}\n") == 1


def test_a_failure_of_its_own_is_not_explained(grade: Run, tree: Path) -> None:
    (tree / "tests/known_mistakes.toml").write_text(MISTAKES)
    edit(tree, "src/tiny_llm/sums.py", 'raise NotImplementedError("task 1.1.1")', "return 11 * x")
    done = grade("--day", "1.1")
    assert "1 failed" in done.stdout
    assert "This is what happens" not in done.stdout
