"""A small package to be recorded with one line changed, and what is done with it."""

from collections.abc import Callable
from pathlib import Path

from tiny_llm_lab.course.compare.calls import Call
from tiny_llm_lab.course.compare.command import CallsOfTest, differences, report

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
