"""Day 3.9: how often drafts are accepted, in numbers."""

import pytest
from tests.helpers.drafting import counters

pytestmark = pytest.mark.task("3.9.5")


def test_a_draft_adds_to_four_counters(llm):
    stats = llm.SpecDecodeStats()
    stats.observe(0, 0)
    assert counters(stats) == (0, 0, 0, []), "an empty draft is none"
    assert (stats.acceptance_rate, stats.mean_acceptance_length) == (None, None)
    stats.observe(4, 2)
    assert counters(stats) == (1, 4, 2, [1, 1, 0, 0])
    stats.observe(2, 1)
    assert counters(stats) == (2, 6, 3, [2, 1, 0, 0])
    stats.observe(5, 5)
    assert counters(stats) == (3, 11, 8, [3, 2, 1, 1, 1])


def test_rates(llm):
    stats = llm.SpecDecodeStats()
    stats.observe(4, 0)
    assert (stats.acceptance_rate, stats.mean_acceptance_length) == (0.0, 1.0), "a replacement comes anyway"
    stats.observe(2, 2)
    assert (stats.acceptance_rate, stats.mean_acceptance_length) == (2 / 6, 1 + 2 / 2)


@pytest.mark.parametrize(("num_drafted", "num_accepted"), [(1, 2), (0, 1), (3, -1), (-1, 0), (-1, -1)])
def test_no_more_is_accepted_than_drafted(llm, num_drafted, num_accepted):
    stats = llm.SpecDecodeStats()
    with pytest.raises(ValueError):
        stats.observe(num_drafted, num_accepted)
    assert counters(stats) == (0, 0, 0, [])
