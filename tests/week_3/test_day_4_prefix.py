"""Day 3.4, third part: the scheduler with a prefix cache. What is shared is scheduled once."""

from dataclasses import replace

import pytest
from tests.helpers.scheduling import Job, drive
from tests.helpers.timelines import assert_steps

from tiny_llm_lab.types import SchedulerConfig

pytestmark = pytest.mark.task("3.4.3")

PLAIN = SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=64, max_model_len=4096)


def config(**changes):
    return replace(PLAIN, **changes)


def families(count=8, common=64, own=4, max_tokens=1, apart=0):
    """`count` prompts, `apart` steps apart, with `common` tokens in common and `own` of their own."""
    return [
        Job(
            f"r{i}",
            [*range(common), *range(1000 * (i + 1), 1000 * (i + 1) + own)],
            max_tokens,
            step=i * apart,
        )
        for i in range(count)
    ]


def prompt_tokens(run):
    return sum(sum(run.chunks(name)) for name in run.jobs)


@pytest.mark.parametrize("apart", [0, 1, 3])
def test_eight_prompts_with_64_tokens_in_common(llm, apart):
    without = drive(llm, PLAIN, families(apart=apart))
    shared = drive(llm, PLAIN, families(apart=apart), cached=True)
    assert prompt_tokens(without) == 544
    assert prompt_tokens(shared) == 96, "68 of the first one and 4 of each later one"
    assert prompt_tokens(without) - prompt_tokens(shared) == 7 * 16 * 4
    if apart == 0:
        assert_steps(shared.tokens(), [{"r0": 68}, {f"r{i}": 4 for i in range(1, 8)}])


def test_hits_are_counted_in_blocks_and_tokens(llm):
    caches = []
    jobs = [
        Job("a", [*range(1000), *range(5000, 5500)], 1),
        Job("b", [*range(1000), *range(7000, 7500)], 1, step=1),
    ]
    run = drive(llm, PLAIN, jobs, cached=True, before_step=lambda step, s: caches.append(s.prefix_cache))
    cache = caches[0]
    assert run.chunks("b") == [508], "62 full blocks of the 1000 common tokens: 992"
    assert run.jobs["b"].request.num_cached_tokens == 992
    assert (cache.num_hit_blocks, cache.num_hit_tokens) == (62, 992)
    assert (cache.num_query_blocks, cache.num_query_tokens) == (2 * 93, 3000)


def test_a_known_prompt_computes_its_last_token(llm):
    jobs = [Job("a", range(64), 1), Job("b", range(64), 1, step=1), Job("c", range(65), 1, step=2)]
    run = drive(llm, PLAIN, jobs, cached=True)
    assert [run.chunks(name) for name in "abc"] == [[64], [16], [1]], "3 blocks of b, all 4 of c"


def test_a_follower_is_admitted_and_waits_without_holding_up_others(llm):
    jobs = [Job("a", range(512), 2), Job("b", range(512), 2), Job("c", 20, 1)]
    run = drive(llm, config(long_prefill_token_threshold=64), jobs, cached=True)
    assert run.ttft("c") == 1
    assert run.chunks("b") == [16, 1], "31 of 32 blocks came from a"
    assert run.ttft("b") == 9, "one step after a"


def test_when_the_leader_goes_the_follower_goes_on(llm):
    jobs = [Job("a", range(256), 2), Job("b", range(256), 2)]

    def leave(step, scheduler):
        if step == 3:
            assert scheduler.abort("a")
            jobs[0].done_step = step

    run = drive(llm, config(long_prefill_token_threshold=64), jobs, cached=True, before_step=leave)
    assert run.chunks("a") == [64] * 3
    assert run.chunks("b") == [64, 1], "192 tokens came from a"
    assert prompt_tokens(run) <= 256 + 16 + 2
