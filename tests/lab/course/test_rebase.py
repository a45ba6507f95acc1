"""`check --rebase` moves known mistakes with the code that they change, where that is clear."""

from pathlib import Path

import pytest

from tiny_llm_lab.course.checking.rebase import rebase, same_edit
from tiny_llm_lab.course.manifest import load_course

HEAD = "# Two days.\n\n"
TWICE = '[["1.1.1".twice]]\nsays = "thrice"\nfind = "return 2 * x"\nswap = "return 3 * x"\n\n'
STEP = '# The counter\n\n[["1.2.1"."Counter.step"]]\nsays = "by twos"\n'
STEP += 'find = "self.n += 1"\nswap = "self.n += 2"\n'


@pytest.fixture
def toml(tree: Path) -> Path:
    path = tree / "tests/known_mistakes.toml"
    path.write_text(HEAD + TWICE + STEP)
    return path


def rebased(tree: Path, right: str, new: str) -> list[str]:
    """What is said when the reference changes."""
    path = tree / "src/tiny_llm_ref/sums.py"
    path.write_text(path.read_text().replace(right, new))
    return list(rebase(load_course(tree)))


def test_what_fits_stays(tree: Path, toml: Path) -> None:
    assert rebased(tree, "return 2 * x", "return (2  *  x)  # why") == []
    assert toml.read_text() == HEAD + TWICE + STEP


def test_a_mistake_follows_its_code(tree: Path, toml: Path) -> None:
    said = rebased(tree, "self.n += 1", "self.count.n += 1")
    assert said == ["moved  1.2.1  by twos: 'self.count.n += 1' -> 'self.count.n += 2'"]
    assert toml.read_text() == HEAD + TWICE + STEP.replace("self.n", "self.count.n")
    assert rebased(tree, "", "") == []


def test_it_follows_to_another_symbol(tree: Path, toml: Path) -> None:
    rebased(tree, "def step(", "def advance(")
    assert toml.read_text() == HEAD + TWICE + STEP.replace("Counter.step", "Counter.advance")


def test_it_follows_to_another_file(tree: Path, toml: Path) -> None:
    path = tree / "src/tiny_llm_ref/sums.py"
    counter = path.read_text().partition("class ")[2]
    (path.parent / "counting.py").write_text(f"class {counter}")
    rebased(tree, f"class {counter}", "")
    assert toml.read_text() == HEAD + TWICE + STEP.replace("Counter.step", "counting.py:Counter.step")


@pytest.mark.parametrize(
    "new",
    [
        "self.n += 2",  # the edit meets the change
        "self.n += 1\n        self.n += 1",  # which of both?
        "print()",  # nothing like it
    ],
)
def test_what_is_not_clear_is_left(tree: Path, toml: Path, new: str) -> None:
    assert rebased(tree, "self.n += 1", new) == ["left   1.2.1  by twos"]
    assert toml.read_text() == HEAD + TWICE + STEP


@pytest.mark.parametrize(
    ("find", "swap", "new", "wrong"),
    [
        ("f(x, axis=-1)", "f(x, axis=0)", "g(self.x, axis=-1)", "g(self.x, axis=0)"),
        ("x = f(a, b)", "x = f(b, a)", "y = f(a, b)", "y = f(b, a)"),
        ("x = f(a, b)", "x = f(b, a)", "x = f(c, b)", None),
        ("self.f(x)", "pass", "self.g.f(x)", "pass"),
        ("self.f(x)", "", "self.g.f(x)", ""),
        (
            "min(size, len(rows))",
            "size",
            "min(settings.size, len(rows))",
            None,
        ),  # a name that is another one now
        ("(row.num_tokens, 1)", "(row.offset, 1)", "(row.answer.num_tokens, 1)", None),  # whose offset?
    ],
)
def test_the_same_edit(find: str, swap: str, new: str, wrong: str | None) -> None:
    assert same_edit(find, swap, new) == wrong
