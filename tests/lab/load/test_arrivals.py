"""When requests arrive."""

import math
from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from tiny_llm_lab.measure.traffic.request import ArrivalSettings, arrival_times


def gaps(count, seed=1, **settings):
    times = arrival_times(count, ArrivalSettings(**settings), seed)
    assert len(times) == count and times[0] == 0.0
    return [after - before for before, after in pairwise(times)]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_rate_and_the_spread_that_was_asked_for(burstiness):
    each = gaps(4001, request_rate=5.0, burstiness=burstiness)
    assert fmean(each) == pytest.approx(1 / 5)
    # The standard deviation of a gamma distribution over its mean.
    assert pstdev(each) / fmean(each) == pytest.approx(burstiness**-0.5, rel=0.08)


def test_fixed_intervals_and_all_at_once():
    assert gaps(5, request_rate=4.0, burstiness=math.inf) == [0.25] * 4
    assert gaps(5) == [0.0] * 4


@pytest.mark.parametrize(
    ("strategy", "rates"), [("linear", [1.0, 4.5, 8.0]), ("exponential", [1.0, 8**0.5, 8.0])]
)
def test_a_ramp_goes_from_the_first_rate_to_the_last(strategy, rates):
    ramp = {"ramp_up_strategy": strategy, "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 8.0}
    each = gaps(4, burstiness=math.inf, **ramp)
    assert each == pytest.approx([1 / rate for rate in rates])


def test_a_single_request_and_none():
    assert arrival_times(1, ArrivalSettings(request_rate=2.0), 0) == [0.0]
