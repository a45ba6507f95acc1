"""Day 3.4, last part: storms in a pool that is too small. Whatever happens, the books must be right."""

import pytest
from tests.helpers.soak import storm


@pytest.mark.task("3.4.3")
@pytest.mark.parametrize("seed", range(12))
def test_a_storm_first_come_first_served(llm, seed):
    run = storm(llm, seed, 40, "fcfs", has_grid=False)
    assert len(run.lives) == 40


@pytest.mark.task("3.4.3")
def test_the_storms_do_preempt(llm):
    assert sum(storm(llm, seed, 40, "fcfs", has_grid=False).num_preemptions for seed in range(4)) > 0
