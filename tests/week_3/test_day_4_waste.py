"""Day 3.4: how much of the memory that requests hold is empty while they answer."""

import numpy as np
import pytest

from tiny_llm_lab.types import SchedulerConfig

MAX_MODEL_LEN = 4096


def most_wasted(llm, block_size):
    """The largest share of allocated but unused token places of any step, once all run; and the lengths."""
    draws = np.random.default_rng(0).lognormal(np.log(256), 0.8, size=64)
    lengths = np.clip(draws, 16, MAX_MODEL_LEN // 2).astype(int).tolist()
    pool = llm.BlockPool(4096 * 16 // block_size, block_size)
    scheduler = llm.Scheduler(SchedulerConfig(2048, 64, MAX_MODEL_LEN), pool)
    for i, length in enumerate(lengths):
        scheduler.add(llm.TokenSequence(str(i), [i] * length))
    shares = []
    while len(shares) < 40:
        plan = scheduler.schedule()
        running = {request.request_id: request for request in scheduler.running}
        sampled = {
            name: [1]
            for name, count in plan.num_scheduled_tokens.items()
            if running[name].needs_sample(count)
        }
        scheduler.commit(plan, sampled)
        if len(running) == 64 and all(request.is_decoding for request in running.values()):
            num_places = sum(len(request.block_ids) for request in running.values()) * block_size
            num_used = sum(request.num_computed_tokens for request in running.values())
            shares.append(1 - num_used / num_places)
    assert pool.num_free == pool.num_blocks - num_places // block_size
    return max(shares), lengths


@pytest.mark.task("3.4.3")
@pytest.mark.parametrize(("block_size", "share"), [(16, 0.0233), (32, 0.0444)])
def test_hardly_a_place_is_empty(llm, block_size, share):
    wasted, lengths = most_wasted(llm, block_size)
    assert wasted == pytest.approx(share, abs=0.0001), "half a block a request, of 351 tokens on average"
    assert block_size > 16 or wasted < 0.04
    reserved = 1 - sum(lengths) / (len(lengths) * MAX_MODEL_LEN)
    assert reserved > 0.91, "what room for the longest possible answer of each would leave empty"
