"""Metrics on vectors whose answers were worked out by hand."""

import pytest

from tiny_llm_lab.runtime import metrics
from tiny_llm_lab.types import Completion, Timing


def completion(idx, timing, error=None):
    reason = "error" if error else "length"
    return Completion(idx, 5, tuple(range(len(timing.token_s))), "text", reason, timing, error)


RANKS = [
    *((1, 50, 1), (2, 50, 1), (3, 50, 2), (4, 50, 2), (10, 90, 9), (11, 90, 10)),
    *((15, 99, 15), (99, 99, 99), (100, 99, 99), (101, 99, 100), (200, 99, 198), (100, 100, 100)),
]


@pytest.mark.parametrize(("count", "percent", "rank"), RANKS)
def test_percentile_is_the_value_of_the_nearest_rank(count, percent, rank):
    values = list(range(count, 0, -1))
    assert metrics.percentile(values, percent) == rank


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], 0), ([1.0], 101)])
def test_percentile_of_nothing_is_an_error(values, percent):
    with pytest.raises(ValueError, match="percentile"):
        metrics.percentile(values, percent)


def test_one_stall_shows_in_p99_and_max_but_not_in_the_median():
    gaps = [0.01] * 14 + [1.0]
    assert metrics.spread(gaps) == metrics.Spread(count=15, p50_s=0.01, p90_s=0.01, p99_s=1.0, max_s=1.0)
    assert metrics.spread([]) is metrics.spread([None]) is None
    assert metrics.spread([None, 2.0]) == metrics.spread([2.0])


def test_ttft_runs_from_arrival_and_tpot_leaves_it_out():
    timing = Timing(arrival_s=10.0, token_s=(14.0, 15.0, 19.0))
    assert timing.ttft_s == 4.0
    assert metrics.e2e_s(timing) == 9.0
    assert metrics.tpot_s(timing) == (9.0 - 4.0) / 2
    assert metrics.decode_rate(timing) == 1 / 2.5


def test_too_few_tokens_have_no_rate():
    assert metrics.tpot_s(Timing(0.0, (1.0,))) is None
    assert metrics.tpot_s(Timing(0.0)) is None
    assert metrics.e2e_s(Timing(0.0)) is None
    assert metrics.decode_rate(Timing(0.0, (1.0, 1.0))) is None


def test_a_failed_request_counts_as_failed_and_nowhere_else():
    good = completion(0, Timing(0.0, (1.0, 2.0, 4.0)))
    bad = completion(1, Timing(0.0), error="the prompt is empty")
    summary = metrics.summarize([good, bad], total_s=4.0)
    assert (summary.num_requests, summary.num_failed) == (2, 1)
    assert (summary.num_prompt_tokens, summary.num_output_tokens) == (5, 3)
    assert summary.output_tokens_per_s == 0.75
    assert summary.ttft_median_s == 1.0
    assert summary.tpot_median_s == 1.5
    assert summary.itl == metrics.Spread(2, 1.0, 2.0, 2.0, 2.0)


def test_a_run_without_tokens_has_no_latencies():
    summary = metrics.summarize([completion(0, Timing(0.0), error="no")], total_s=0.0)
    assert summary.itl is None and summary.ttft_median_s is None and summary.output_tokens_per_s is None


LATE = [(99, 0, True), (99, 1, False), (100, 1, True), (201, 2, True), (201, 3, False)]


@pytest.mark.parametrize(("num_gaps", "num_late", "want"), LATE)
def test_one_gap_in_a_hundred_may_be_late(num_gaps, num_late, want):
    times = [1.0]
    for gap in [0.5] * num_late + [0.125] * (num_gaps - num_late):
        times.append(times[-1] + gap)
    assert metrics.Slo(itl_s=0.125, ttft_s=1.0).holds(Timing(0.0, tuple(times))) == want
    assert not metrics.Slo(itl_s=0.125, ttft_s=0.9).holds(Timing(0.0, tuple(times)))
