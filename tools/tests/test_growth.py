"""A file as it stands before later tasks add to it, and what a chapter shows of that."""

import ast

import pytest
from tests.helpers.trees import course_toml, write_files

from tiny_llm_lab.course.growth import Growth, as_of, in_starter
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.starter.stubs import starter
from tools.book.signatures import Signatures

ANSWER = '''\
from .other import Cache, Page


class Model:
    def __init__(self, size: int, fast: bool = False) -> None:
        """`size` [V, E].

        From task 2.1.1 on: with `fast` on all cores, and
        two lines of it.
        From task 2.1.2 on: nothing more.
        """
        self.size = size

    def call(
        self,
        tokens: list[int],
        offset: int | list[int] = 0,
        cache: Cache | Page | None = None,
        *,
        keep: int | None = None,
    ) -> dict[str, list[int]]:
        """Calls.

        From task 1.2.1 on: `cache` is used.

        Not with -1.
        """
        return {"a": tokens}
'''
STARTER = '''\
from .other import Cache, Page


class Model:
    def __init__(self, size: int) -> None:
        """`size` [V, E]."""
        self.size = size

    def call(self, tokens: list[int], offset: int = 0, *, keep: int | None = None) -> dict[str, list[int]]:
        """Calls.

        Not with -1.
        """
        return {"a": tokens}
'''
GROWN = [
    Growth("1.2.1", "Model.call", "cache"),
    Growth("2.1.1", "Model.__init__", "fast"),
    Growth("2.1.1", "Model.call", "cache", before="Cache | None"),
    Growth("2.1.2", "Model.call", "offset", before="int"),
]


def test_what_later_tasks_add_leaves_the_starter():
    assert in_starter(ANSWER, GROWN) == STARTER
    assert in_starter(STARTER, []) == STARTER


def test_between_two_tasks_a_parameter_has_the_type_of_the_first():
    text = as_of(ANSWER, GROWN, lambda task: task <= "1.2.1")
    assert "offset: int = 0, cache: Cache | None = None, *, keep: int | None = None\n" in text
    assert "From task 1.2.1 on: `cache` is used." in text and "cores" not in text
    assert "From task 2.1.2 on: nothing more." in as_of(ANSWER, GROWN, lambda task: task == "2.1.2")
    ast.parse(text)


COURSE = course_toml(
    'day: id = "1.1"; title = "One"; chapter = "one.md"',
    'day: id = "2.1"; title = "Two"; chapter = "two.md"',
    'task: id = "1.1.1"; title = "twice"; file = "sums.py"; symbols = ["twice"]',
    'task: id = "2.1.1"; title = "the counter"; file = "sums.py"; '
    'symbols = ["Counter"]; grows = ["twice"]; adds = ["twice(n)"]; widens = ["twice(x: int)"]',
)
SUMS = '''
def twice(x: int | float, n: int = 2, *, of: int = 0) -> float:
    """Twice x.

    From task 2.1.1 on: `n` times x.
    """
    return n * x


class Counter:
    def step(self) -> int:
        return 1
'''
SHOWN = '''\
Task 2.1.1 extends functions of earlier days. Marked: what is new in their signatures, and what their \
docstrings say of it:

```python
# sums.py

def twice(
    x: int | float,  # was int
    n: int = 2,  # new
    *,
    of: int = 0,
) -> float:
    """From task 2.1.1 on: `n` times x."""
```
'''


def course_with(folder, sums):
    return load_course(write_files(folder, {"course.toml": COURSE, "src/tiny_llm_ref/sums.py": sums}))


def test_a_chapter_shows_what_is_new(tmp_path):
    signatures = Signatures(course := course_with(tmp_path, SUMS))
    assert [signatures.is_needed(day) for day in course.days] == [False, True]
    assert signatures.shown(course.day("2.1")) == SHOWN
    assert 'def twice(x: int, *, of: int = 0) -> float:\n    """Twice x."""\n' in starter(course)["sums.py"]


@pytest.mark.parametrize(("added", "is_folded"), [(20, False), (21, True)])
def test_a_long_block_is_folded(tmp_path, added, is_folded):
    """The block has 10 lines and what is added."""
    says = "`n` times x." + "\n    A line." * added + "\n    "
    shown = Signatures(course := course_with(tmp_path, SUMS.replace("`n` times x.", says))).shown(
        course.day("2.1")
    )
    before, code, after = shown.replace("```python", "```").split("```")
    assert len(code.strip().splitlines()) == 10 + added
    summary = f"<details><summary>What task 2.1.1 extends, {10 + added} lines</summary>"
    assert (summary in before and after == "\n\n</details>\n") == is_folded
