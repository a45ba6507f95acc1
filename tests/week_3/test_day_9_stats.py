"""Day 3.9: how often drafts are accepted, in numbers."""

import pytest

pytestmark = pytest.mark.task("3.9.5")


def counters(stats):
    return (
        stats.num_drafts,
        stats.num_draft_tokens,
        stats.num_accepted_tokens,
        stats.num_accepted_tokens_per_pos,
    )


def test_nothing_is_counted_at_first(llm):
    stats = llm.SpecDecodeStats()
    assert counters(stats) == (0, 0, 0, [])
    assert (stats.acceptance_rate, stats.mean_acceptance_length) == (None, None)


def test_a_draft_adds_to_four_counters(llm):
    stats = llm.SpecDecodeStats()
    stats.observe(4, 2)
    assert counters(stats) == (1, 4, 2, [1, 1, 0, 0])
    stats.observe(2, 1)
    assert counters(stats) == (2, 6, 3, [2, 1, 0, 0])
    stats.observe(5, 5)
    assert counters(stats) == (3, 11, 8, [3, 2, 1, 1, 1])


def test_an_empty_draft_is_none(llm):
    stats = llm.SpecDecodeStats()
    stats.observe(0, 0)
    assert counters(stats) == (0, 0, 0, [])
    assert stats.mean_acceptance_length is None


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
