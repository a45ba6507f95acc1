"""Day 3.5: storms in a pool that is too small, under every policy and with chunks on a grid."""

import pytest
from tests.helpers.scheduling import Job, drive
from tests.helpers.soak import storm

from tiny_llm_lab.types import SchedulerConfig


@pytest.mark.task("3.5.2")
@pytest.mark.parametrize("seed", range(12))
def test_a_storm_first_come_first_served(llm, seed):
    run = storm(llm, seed, 40, "fcfs")
    assert len(run.lives) == 40


@pytest.mark.task("3.5.3")
@pytest.mark.parametrize("policy", ["fair", "priority"])
@pytest.mark.parametrize("seed", range(12))
def test_a_storm_with_other_policies(llm, policy, seed):
    run = storm(llm, seed, 40, policy)
    assert len(run.lives) == 40


@pytest.mark.task("3.5.3")
def test_these_storms_do_preempt(llm):
    assert sum(storm(llm, seed, 40, "fair").num_preemptions for seed in range(4)) > 0


@pytest.mark.task("3.5.3")
def test_an_urgent_follower_goes_on_when_its_leader_is_preempted(llm):
    # b stands before a: its decodes take a's blocks when none are left.
    jobs = [Job("a", range(256), 2, priority=2), Job("b", range(256), 2, priority=1)]
    setting = SchedulerConfig(
        max_num_batched_tokens=2048, max_model_len=4096, long_prefill_token_threshold=64, policy="priority"
    )
    run = drive(llm, setting, jobs, cached=True)
    assert run.num_computed() <= 256 + 16 + 2
