"""What given answers pass to a learner's functions, and these get as parameters that they ignore."""

import ast

import pytest

from tiny_llm_lab.course.exercises import Growth
from tiny_llm_lab.course.source import Source
from tiny_llm_lab.course.starter.passing import calls_in, with_passed

GROWN = [
    Growth("2.1.1", "twice", "n"),
    Growth("2.1.1", "Model.__init__", "fast"),
    Growth("2.1.2", "Model.__call__", "cache"),
]
ANSWER = Source("""\
from .other import NO_CACHE, Cache

def twice(x: int, n: int = 2, *rest: int) -> int: ...

class Model:
    def __init__(self, size: int, fast: bool = False) -> None: ...
    def __call__(self, x: int, cache: Cache = NO_CACHE, *, mask: int) -> int: ...
""")
MINE = """\
import math

class Model:
    def __init__(self, size):
        self.size = size

    @property
    def name(self) -> str:
        return "m"

    def __call__(self, x: int, *, mask: int) -> int:
        return x

def twice(x: int) -> int:
    return x + x
"""


@pytest.mark.parametrize(
    ("call", "head", "line"),
    [
        ("twice(1, 3)", "def twice(x: int, n=2) -> int:", "your twice now takes `n=2` (task 2.1.1)"),
        ("other.twice(1, n=3)", "def twice(x: int, n=2) -> int:", "your twice now takes `n=2`"),
        ("Model(1, True)", "def __init__(self, size, fast=False):", "your Model.__init__ now takes"),
        (
            "model(1, cache=2, mask=3)",
            "def __call__(self, x: int, cache=NO_CACHE, *, mask: int) -> int:",
            "2.1.2",
        ),
    ],
)
def test_what_is_passed_becomes_a_parameter(call, head, line):
    text, said = with_passed(MINE, ANSWER, GROWN, calls_in([call]))
    assert f"{head}\n" in text and text.count("\n        ") == MINE.count("\n        ")
    again, _ = with_passed("from .other import NO_CACHE\n" + MINE, ANSWER, GROWN, calls_in([call]))
    assert len(said) == 1 and line in said[0] and again.count("import NO_CACHE") == 1
    assert ("from .other import NO_CACHE\nimport math" in text) == ("NO_CACHE" in head)
    ast.parse(text)


@pytest.mark.parametrize("call", ["twice(1)", "thrice(1, n=2)", "Model(1)", "model(1, 2)", "broken(("])
def test_any_other_call_changes_nothing(call):
    assert with_passed(MINE, ANSWER, GROWN, calls_in([call])) == (MINE, [])


def test_a_head_with_the_parameter_or_of_several_lines_without_a_type_stays():
    for mine in (
        "def twice(x, n=3):\n    return n * x\n",
        "def twice(\n    x,\n):\n    return 2 * x\n",
        "def :",
    ):
        assert with_passed(mine, ANSWER, GROWN, calls_in(["twice(1, n=2)"])) == (mine, [])
