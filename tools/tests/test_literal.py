"""Checks that the course can be done as it is written, each on a course that breaks it."""

import pytest
from tests.helpers.trees import course_toml, edit, write_files

from tiny_llm_lab.course.manifest import load_course
from tools.checking.chapters import chapter_faults

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
./pdmw run watch {task}
```

Expect `{num} passed`.

</div>
"""
PAGES = {
    f"book/src/{n}.md": PAGE.format(names=names, task=f"1.{n}.1", num=num)
    for n, names, num in ((1, "`times`", 1), (2, "`thrice`", 1), (3, "`Counter`", 2), (4, "`checked`", 1))
}


@pytest.fixture
def literal(tmp_path):
    """The root of a sound course."""
    return write_files(tmp_path, FILES | PAGES)


def test_a_sound_course_is_done_as_it_is_written(literal):
    course = load_course(literal)
    assert list(chapter_faults(course)) == []


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
def test_a_page_that_cannot_be_followed_is_told(literal, file, old, new, says):
    edit(literal, file, old, new)
    found = list(chapter_faults(load_course(literal), "1.3"))
    assert says in "\n".join(found), found


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("checked(llm.times(2, 3))", "needs task 1.4.1, which comes later"),
        ("times(2, 3, more=0)", "times() got an unexpected keyword argument 'more'"),
    ],
)
def test_a_test_that_needs_a_later_task_is_told(literal, call, says):
    edit(literal, "tests/week_1/test_day_1.py", "llm.times(2, 3) == 6", f"llm.{call} == 6")
    found = list(chapter_faults(load_course(literal), "1.1"))
    assert found[0] == "1.1.1: page says 1 passed, got 1 failed"
    assert says in found[1]
