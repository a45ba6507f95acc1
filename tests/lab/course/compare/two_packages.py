"""A small package to be recorded with one line changed, and what is done with it."""

from collections.abc import Callable
from pathlib import Path

from tiny_llm_lab.course.compare.calls import Call
from tiny_llm_lab.course.compare.command import CallsOfTest, differences, report

SOURCE = """
def scale(x, by=2):
    return x * by

class Norm:
    def __init__(self, eps):
        self.eps = eps
        self.count = 0
    def __call__(self, x):
        self.count += 1
        return x + self.eps

class Model:
    def __init__(self):
        self.layers = [Norm(1), Norm(1), Norm(1)]
    def __call__(self, x):
        for layer in self.layers:
            x = _twice(layer(x))
        return x
    def tokens(self, x):
        for i in range(3):
            yield scale(i)
    @classmethod
    def small(cls):
        return cls()

def _twice(x):
    return scale(x, 2)

def sharp(x):
    return (x - 2) * 1000

class Block:
    def __init__(self):
        self.norm = Norm(1.0)
    def __call__(self, x):
        return sharp(self.norm(x))
"""

Record = Callable[..., list[Call]]


def forward(module):
    module.Model()(1)


def stream(module):
    list(module.Model.small().tokens(1))


def reported(wanted, mine):
    """What is said of tests that all failed on mine."""
    one = {test: CallsOfTest(calls) for test, calls in wanted.items()}
    other = {test: CallsOfTest(calls, has_failed=True) for test, calls in mine.items()}
    return list(report(one, other, differences(one, other, later=()), Path("/")))
