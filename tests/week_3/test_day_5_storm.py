"""Day 3.5: storms in a pool that is too small, under every policy and with chunks on a grid."""

import pytest
from tests.helpers.scheduling import Job, drive

from tiny_llm_lab.types import SchedulerConfig


@pytest.mark.task("3.5.3")
def test_an_urgent_follower_goes_on_when_its_leader_is_preempted(llm):
    # b stands before a: its decodes take a's blocks when none are left.
    jobs = [Job("a", range(256), 2, priority=2), Job("b", range(256), 2, priority=1)]
    setting = SchedulerConfig(
        max_num_batched_tokens=2048, max_model_len=4096, long_prefill_token_threshold=64, policy="priority"
    )
    run = drive(llm, setting, jobs, cached=True)
    assert run.num_computed() <= 256 + 16 + 2
