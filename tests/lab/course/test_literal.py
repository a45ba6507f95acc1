"""Checks that the course can be done as it is written, each on a course that breaks it."""

from pathlib import Path

import pytest
from tests.lab.course.trees import course_toml, edit, write_files

from tiny_llm_lab.course.checking.chapters import chapter_faults
from tiny_llm_lab.course.checking.mixes import Mix, draw_mixes, mix_faults
from tiny_llm_lab.course.checking.wording import reworded, wording_faults
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.starter import around_given

COURSE = course_toml(
    *(f'day: id = "1.{n}"; title = "{n}"; chapter = "{n}.md"' for n in range(1, 5)),
    'task: id = "1.1.1"; title = "times"; file = "sums.py"; symbols = ["times"]',
    'task: id = "1.2.1"; title = "thrice"; file = "more.py"; symbols = ["thrice"]; calls = ["checked"]',
    'task: id = "1.3.1"; title = "the counter"; file = "counter.py"; symbols = ["Counter"]',
    'task: id = "1.4.1"; title = "checked"; file = "checks.py"; symbols = ["checked"]; '
    'grows = ["times"]; adds = ["times(more)"]',
)
FILES = {
    "course.toml": COURSE,
    "src/tiny_llm_ref/__init__.py": "",
    "src/tiny_llm_ref/kernels/none.h": "",
    "src/tiny_llm_ref/sums.py": """from tiny_llm_lab.types import UserError

NOTHING = 0


def times(x: int, n: int, more: int = NOTHING) -> int:
    \"\"\"n times x.

    Raises UserError with "negative" for a negative n.
    From task 1.4.1 on: and `more`.
    \"\"\"
    if n < 0:
        raise UserError(f"{n} is negative and bad")
    return _product(x, n) + more


def _product(x: int, n: int) -> int:
    return n * x
""",
    "src/tiny_llm_ref/more.py": """from .checks import checked
from .sums import times


def thrice(x: int) -> int:
    return checked(times(x, 3, more=0))
""",
    "src/tiny_llm_ref/counter.py": """from .more import thrice


class Counter:
    def __init__(self) -> None:
        self.n = 0

    def step(self) -> int:
        self.n += 1
        return self.n

    def back(self) -> int:
        self.n -= 1
        return self.n

    def big_step(self) -> int:
        self.n += thrice(1)
        return self.n
""",
    "src/tiny_llm_ref/checks.py": """def checked(x: int) -> int:
    return x
""",
    "tests/week_1/test_day_1.py": """
import pytest

@pytest.mark.task("1.1.1")
def test_times(llm):
    assert llm.times(2, 3) == 6
    with pytest.raises(Exception, match="negative"):
        llm.times(2, -1)

@pytest.mark.task("1.2.1")
def test_thrice(llm):
    assert llm.thrice(2) == 6

@pytest.mark.task("1.3.1")
def test_step(llm):
    assert llm.Counter().step() == 1

@pytest.mark.task("1.3.1")
def test_big_step(llm):
    assert llm.Counter().big_step() == 3

@pytest.mark.task("1.4.1")
def test_checked(llm):
    assert llm.checked(llm.times(2, 3, more=1)) == 7
""",
    "pytest.ini": "[pytest]\naddopts = --strict-markers\n",
}
PAGE = """# A day

<div class="do">

Write {names}.

```bash
./pdmw run test --task {task}
```

Expect `{num} passed`.

</div>
"""
PAGES = {
    f"book/src/{n}.md": PAGE.format(names=names, task=f"1.{n}.1", num=num)
    for n, names, num in ((1, "`times`", 1), (2, "`thrice`", 1), (3, "`Counter`", 2), (4, "`checked`", 1))
}


@pytest.fixture
def literal(tmp_path: Path) -> Path:
    """The root of a sound course."""
    return write_files(tmp_path, FILES | PAGES)


def test_a_sound_course_is_done_as_it_is_written(literal: Path) -> None:
    course = load_course(literal)
    assert list(chapter_faults(course)) == []
    assert list(wording_faults(course)) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("book/src/3.md", "`2 passed`", "`3 passed`", "1.3.1: page says 3 passed, got 2 passed"),
        ("book/src/3.md", "`2 passed`", "`1 passed, 1 todo`", "says 1 passed, 1 todo, got 2 passed"),
        ("book/src/3.md", "Expect", "See", "1.3.1: page says no number, got 2 passed"),
        ("book/src/3.md", "`Counter`", "`step` and `back`", "1.3.1: the page asks for no Counter.big_step"),
        ("course.toml", 'calls = ["checked"]', "", "1.3.1: page says 2 passed, got 1 passed, 1 failed"),
    ],
)
def test_a_page_that_cannot_be_followed_is_told(
    literal: Path, file: str, old: str, new: str, says: str
) -> None:
    edit(literal, file, old, new)
    found = list(chapter_faults(load_course(literal), "1.3"))
    assert says in "\n".join(found), found


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("checked(llm.times(2, 3))", "needs task 1.4.1, which comes later"),
        ("times(2, 3, more=0)", "the parameter `more`"),
    ],
)
def test_a_test_that_needs_a_later_task_is_told(literal: Path, call: str, says: str) -> None:
    edit(literal, "tests/week_1/test_day_1.py", "llm.times(2, 3) == 6", f"llm.{call} == 6")
    found = list(chapter_faults(load_course(literal), "1.1"))
    assert found[0] == "1.1.1: page says 1 passed, got 1 failed"
    assert says in found[1]


def test_a_word_that_no_docstring_quotes_must_not_be_demanded(literal: Path) -> None:
    edit(literal, "tests/week_1/test_day_1.py", 'match="negative"', 'match="bad"')
    (fault,) = wording_faults(load_course(literal))
    assert "test_times" in fault


def test_what_is_raised_says_other_words() -> None:
    source = '''
class Pool:
    """Of `blocks`."""

    def take(self, n):
        """Raises ValueError("too many")."""
        if n > 9:
            raise ValueError(f"too many blocks wanted: {n:d}, not {self.free!r}") from None
        return "not raised"
'''
    changed = reworded(source)
    assert "f'too many blocks other: {n:d}, other {self.free!r}'" in changed
    assert "return 'not raised'" in changed


OWN = ("1.1", "1.3")


def mix_of(monkeypatch: pytest.MonkeyPatch, root: Path) -> list[str]:
    """The faults of one mix in which the days in OWN are a learner's."""
    course = load_course(root)
    days = tuple(course.day(each) for each in OWN)
    monkeypatch.setattr("tiny_llm_lab.course.checking.mixes.draw_mixes", lambda *_: [Mix(days)])
    return list(mix_faults(course, 1))


def test_own_and_given_days_may_be_mixed(literal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mix_of(monkeypatch, literal) == []
    assert list(mix_faults(load_course(literal), 4)) == []


def test_a_mix_that_breaks_is_told(literal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(around_given, "with_passed", lambda text, *_: (text, []))
    found = mix_of(monkeypatch, literal)
    assert found and found[0].startswith("own 1.1, 1.3: ") and "the parameter `more`" in found[0]


def test_mixes_end_on_every_day_and_can_be_drawn_again() -> None:
    days = load_course().days
    mixes = draw_mixes(days, 2 * len(days), 3)
    assert mixes == draw_mixes(days, 2 * len(days), 3) != draw_mixes(days, 2 * len(days), 4)
    ends = [mix.own[-1].id for mix in mixes]
    assert sorted(ends) == sorted([day.id for day in days] * 2)
    assert all(list(mix.own) == sorted(mix.own, key=days.index) for mix in mixes)
