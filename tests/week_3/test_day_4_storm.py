"""Day 3.4, last part: storms in a pool that is too small. Whatever happens, the books must be right."""

import pytest
from tests.helpers.soak import storm


@pytest.mark.task("3.4.3")
@pytest.mark.parametrize("seed", range(12))
def test_a_storm_first_come_first_served(llm, seed):
    run = storm(llm, seed, 40, "fcfs")
    assert len(run.lives) == 40


@pytest.mark.task("3.4.4")
@pytest.mark.parametrize("policy", ["fair", "priority"])
@pytest.mark.parametrize("seed", range(12))
def test_a_storm_with_other_policies(llm, policy, seed):
    run = storm(llm, seed, 40, policy)
    assert len(run.lives) == 40


@pytest.mark.task("3.4.4")
def test_the_storms_do_preempt(llm):
    assert sum(storm(llm, seed, 40, "fair").num_preemptions for seed in range(4)) > 0
