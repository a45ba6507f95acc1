"""What a failing comparison of two schedules shows."""

import pytest
from tests.helpers.timelines import assert_steps


def test_the_first_step_that_differs_is_marked():
    with pytest.raises(AssertionError) as caught:
        assert_steps([{"a": 60}, {"c": 10, "b": 40}, {}], [{"a": 60}, {"b": 50, "c": 10}], "b waits")
    assert str(caught.value).splitlines() == [
        "the schedule differs from step 1 on (2 steps expected, 3 made): b waits",
        "step  expected     | yours",
        "  0   a: 60        | a: 60",
        "> 1   b: 50, c: 10 | b: 40, c: 10",
        "  2   (no step)    | -",
    ]


def test_a_long_schedule_is_cut_around_the_difference():
    want = [{"a": i} for i in range(40)]
    with pytest.raises(AssertionError) as caught:
        assert_steps([*want[:20], {"a": 0}, *want[21:]], want)
    steps = [line.split()[:2] for line in str(caught.value).splitlines()[2:]]
    assert [step[0] for step in steps] == ["17", "18", "19", ">", "21", "22", "23"]
