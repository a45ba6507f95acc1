"""The known mistakes of the lab: made in a copy of the repository, and rejected by the tests they name."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.helpers.trees import edit

from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.mistake import Mistake
from tiny_llm_lab.runtime.checkout import repository
from tiny_llm_lab.types import UserError
from tools.checking.lab_mistakes import lab_mistakes, try_lab_mistakes
from tools.checking.mistakes import Verdict

WRONG = Mistake("less", "sums.py", "a + b", "a - b", tests="tests/test_sums.py")
ROW = '[["tests/test_x.py"."x.py:x"]]\nsays = "x"\nfind = "x"\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository whose lab is the real one and a module more."""
    lab = Path(load_course.__globals__["__file__"]).parents[1]
    (tmp_path / "tests").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "course.toml").write_text("")
    (tmp_path / "tests/test_sums.py").write_text(
        "from tiny_llm_lab.sums import add\n\ndef test_add():\n    assert add(2, 2) == 4\n"
    )
    for path in lab.rglob("*.py"):
        copy = tmp_path / "src/tiny_llm_lab" / path.relative_to(lab)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (tmp_path / "src/tiny_llm_lab/sums.py").write_text("def add(a, b):\n    return a + b\n")
    return tmp_path


@pytest.mark.long
def test_every_kind_of_verdict(root: Path) -> None:
    swaps = ("a - b", "b + a", "a + c")
    findings = list(try_lab_mistakes(root, [replace(WRONG, swap=swap) for swap in swaps]))
    caught, missed, invalid = Verdict.CAUGHT, Verdict.MISSED, Verdict.INVALID
    assert [finding.verdict for finding in findings] == [caught, missed, invalid]
    assert findings[0].by == "test_add"
    assert "1 passed" in findings[1].by
    assert "return a + b" in (root / "src/tiny_llm_lab/sums.py").read_text(), "the repository itself is left"


def test_the_file_of_known_mistakes(tmp_path: Path) -> None:
    assert lab_mistakes(tmp_path) == []
    path = tmp_path / "tests/lab/known_mistakes.toml"
    path.parent.mkdir(parents=True)
    path.write_text(ROW + 'swap = "y"\n')
    assert lab_mistakes(tmp_path) == [Mistake("x", "x.py", "x", "y", tests="tests/test_x.py", symbol="x")]
    path.write_text(ROW)
    with pytest.raises(UserError, match="missing 1 required positional argument: 'swap'"):
        lab_mistakes(tmp_path)


def test_the_known_mistakes_still_fit() -> None:
    root = repository()
    for mistake in lab_mistakes(root):
        path = root / "src/tiny_llm_lab" / mistake.file
        assert mistake.apply(path) != path.read_text()
        assert all((root / each.partition("::")[0]).exists() for each in mistake.tests.split())


@pytest.mark.long
def test_tests_that_fail_anyway_catch_nothing(root: Path) -> None:
    edit(root, "tests/test_sums.py", "== 4", "== 5")
    (finding,) = try_lab_mistakes(root, [WRONG])
    assert finding.verdict is Verdict.INVALID
    assert finding.by == "without the mistake as well: test_add"
