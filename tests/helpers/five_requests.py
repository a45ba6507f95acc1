"""An engine with five requests, two of which run; and what must be left of them when a step fails."""

from tests.helpers.toy import random_tokens

from tiny_llm_lab.types import SamplingParams, SchedulerConfig

LONG = SamplingParams(max_tokens=12, ignore_eos=True)
TWO_AT_A_TIME = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=2)


def prompt(number):
    return random_tokens(number, 20).tolist()


def add_five(engine):
    """Two requests run, the other three wait."""
    for i in range(5):
        engine.add(f"r{i}", prompt(i), LONG)
    for _ in range(3):
        engine.step()
    assert (len(engine.core.scheduler.running), len(engine.core.scheduler.waiting)) == (2, 3)


def assert_new(engine, old_scheduler):
    assert not engine.has_requests
    assert engine.step() == [], "no request of before is served"
    assert (engine.core.scheduler.running, engine.core.scheduler.waiting) == ((), ())
    assert engine.core.scheduler is not old_scheduler, "its blocks may be half accounted for"
    pool = engine.core.scheduler.pool
    assert pool.num_free == pool.num_blocks
    for i in range(5):
        assert not any(map(engine.core.prefix_cache.find, engine.core.prefix_cache.keys(prompt(i)))), (
            "nor is any prefix"
        )
    assert engine.core.prefix_cache is engine.core.scheduler.prefix_cache
    engine.core.scheduler.check()
