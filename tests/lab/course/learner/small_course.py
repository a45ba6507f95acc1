"""A course of two days in Python, with one task in C++, and its clone: files by their paths."""

from tests.helpers.trees import course_toml

COURSE = course_toml(
    'day: id = "1.1"; title = "One"; chapter = "one.md"',
    'day: id = "1.2"; title = "Two"; chapter = "two.md"',
    'task: id = "1.1.1"; title = "twice"; file = "sums.py"; '
    'symbols = ["twice", "thrice"]; lines = 2; hints = ["What is x + x?", "Multiply by 2."]',
    'task: id = "1.1.2"; title = "a fast sum"; kernel = "kernels/sum.cpp"; symbols = ["sum"]',
    'task: id = "1.2.1"; title = "the counter"; file = "counter.py"; symbols = ["Counter"]',
    'task: id = "1.2.2"; title = "twice a counter"; file = "sums.py"; symbols = []; grows = ["twice"]',
)
SUMS = '''
def twice(x: int,
          of: str = "a") -> int:
    """Twice x."""
    raise NotImplementedError("task 1.1.1")


def thrice(x: int) -> int:
    raise NotImplementedError("task 1.1.1")
'''
ANSWER = """
def twice(x: int,
          of: str = "a") -> int:
    return _times(x, 2)


def thrice(x: int) -> int:
    return 3 * x


def _times(x, n):
    return _product(x, n)


def _product(x, n):
    return x * n
"""
COUNTER = """
class Counter:
    def __init__(self) -> None:
        raise NotImplementedError("task 1.2.1")

    def step(self) -> int:
        raise NotImplementedError("task 1.2.1")
"""
KERNEL = """
float sum(int n) {
  // BEGIN task 1.1.2
  throw std::runtime_error("task 1.1.2");
  // END task 1.1.2
}
"""
ONE = """
import pytest
@pytest.mark.task("1.1.1")
def test_twice(llm):
    assert llm.twice(2) == 4
@pytest.mark.task("1.1.1")
def test_thrice(llm):
    assert llm.thrice(2) == 6
"""
TWO = """
import pytest
@pytest.mark.task("1.2.1")
def test_counter(llm):
    assert llm.Counter().step() == 1
@pytest.mark.task("1.2.2")
def test_more(llm):
    llm.Counter()
"""
FILES = {
    "course.toml": COURSE,
    "src/tiny_llm/__init__.py": "",
    "src/tiny_llm/sums.py": SUMS,
    "src/tiny_llm/counter.py": COUNTER,
    "src/tiny_llm/kernels/sum.cpp": KERNEL,
    "src/tiny_llm_ref/sums.py": ANSWER,
    "src/tiny_llm_ref/counter.py": COUNTER,
    "tests/week_1/test_day_1.py": ONE,
    "tests/week_1/test_day_2.py": TWO,
    "book/src/one.md": "# One\n\n## Task 1.1.1: `twice` a number\n",
    "book/src/two.md": "# Two\n",
    "pytest.ini": "[pytest]\naddopts = --strict-markers\n",
}
