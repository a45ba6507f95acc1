"""A clone of a course of three days, two of them in one file, with its reference."""

from tests.helpers.trees import course_toml

COURSE = course_toml(
    'day: id = "1.1"; title = "One"; chapter = "one.md"',
    'day: id = "1.2"; title = "Two"; chapter = "two.md"',
    'day: id = "2.1"; title = "Three"; chapter = "three.md"',
    'task: id = "1.1.1"; title = "sums"; file = "sums.py"; symbols = ["twice", "Total.__init__"]',
    'task: id = "1.2.1"; title = "adding up"; file = "sums.py"; '
    'symbols = ["Total.add"]; kernel = "kernels/sum.cpp"',
    'task: id = "2.1.1"; title = "the end"; file = "sums.py"; '
    'symbols = ["end"]; grows = ["twice", "Total"]; kernel = "kernels/sum.cpp"',
    'task: id = "2.1.2"; title = "twice more"; file = "sums.py"; symbols = []; grows = ["twice"]',
)

ANSWER = '''\
"""Sums."""

import math
from collections import deque
from collections.abc import Iterable

# How often.
_TIMES = 2


def twice(x: int) -> int:
    """Twice x."""
    return _product(x, _TIMES)


class Total:
    """A total."""

    def __init__(self) -> None:
        self.parts = deque[int]()

    def _sum(self) -> int:
        return sum(self.parts)

    def add(self, items: Iterable[int]) -> int:
        """Add items; returns the total."""
        self.parts.extend(items)
        return self._sum()


def end(x: float) -> float:
    return math.sqrt(_product(1, x))


def _product(x: int, n: int) -> int:
    return x * n
'''

KERNEL = """\
int sum(int n) {
  // BEGIN task 1.2.1
  return n;
  // END task 1.2.1
}
int last(int n) {
  // BEGIN task 2.1.1
  return -n;
  // END task 2.1.1
}
"""

TESTS = """
import pytest

@pytest.mark.task("1.1.1")
def test_twice(llm):
    llm.Total()
    assert llm.twice(2) == 4
"""

FILES = {
    "course.toml": COURSE,
    "src/tiny_llm_ref/__init__.py": "from .sums import Total, end, twice\n",
    "src/tiny_llm_ref/sums.py": ANSWER,
    "src/tiny_llm_ref/kernels/sum.cpp": KERNEL,
    "tests/week_1/test_day_1.py": TESTS,
    "pytest.ini": "[pytest]\naddopts = --strict-markers\n",
}
