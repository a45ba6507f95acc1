"""The words for how far a command is."""

import pytest

from tiny_llm_lab.runtime.console.talk import Remaining


@pytest.mark.parametrize(
    ("took_s", "said"),
    [
        (0.0, "3 of 11, less than a minute left"),
        (22.0, "3 of 11, less than a minute left"),
        (23.0, "3 of 11, about 1 minute left"),
        (180.0, "3 of 11, about 8 minutes left"),
    ],
)
def test_the_rest_takes_as_long_for_each_as_so_far(took_s, said):
    times = iter([100.0, *[100.0 + took_s] * 3])
    remaining = Remaining(11, lambda: next(times))
    assert remaining.now() == "0 of 11"
    assert [remaining.done() for _ in range(3)][-1] == said


def test_nothing_is_left_after_the_last():
    remaining = Remaining(2, lambda: 5.0)
    assert [remaining.done(), remaining.done()] == ["1 of 2, less than a minute left", "2 of 2"]


def test_what_is_left_out_is_not_counted():
    remaining = Remaining(3, lambda: 5.0)
    remaining.done()
    remaining.leave_out(1)
    assert remaining.done() == "2 of 2"
