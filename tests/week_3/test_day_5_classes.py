"""Day 3.5: batch-class requests run on spare capacity, and no interactive request waits for them."""

import random
from dataclasses import replace

import pytest
from tests.helpers.scheduling import POLICIES, Job, config, drive
from tests.helpers.timelines import assert_steps

pytestmark = pytest.mark.task("3.5.3")


def batch(name, prompt, max_tokens, step=0, **options):
    return Job(name, prompt, max_tokens, step, priority_class="batch", **options)


def test_a_prompt_that_comes_later_is_served_first(llm):
    jobs = [batch("b", 300, 3), Job("d", 1, 6), Job("p", 250, 1, step=1)]
    run = drive(llm, config(max_num_batched_tokens=100), jobs)
    want = [
        {"d": 1, "b": 99},
        {"d": 1, "p": 99},
        {"d": 1, "p": 99},
        {"d": 1, "p": 52, "b": 47},
        {"d": 1, "b": 99},
        {"d": 1, "b": 55},
        {"b": 1},
        {"b": 1},
    ]
    assert_steps(run.tokens(), want)


@pytest.mark.parametrize("policy", POLICIES)
def test_it_gives_its_place(llm, policy):
    # Both places are taken; the batch-class request that came last is preempted, until one is free.
    jobs = [batch("a", 4, 6), batch("b", 4, 6), Job("i", 8, 2, step=2, priority=9)]
    run = drive(llm, config(max_num_seqs=2, policy=policy), jobs)
    assert run.tokens()[2] == {"i": 8, "a": 1} and run.plans[2].preempted == ("b",)
    assert run.tokens()[3] == {"i": 1, "a": 1}
    assert run.tokens()[4] == {"a": 1, "b": 4 + 2}, "prompt and answer are computed again"


@pytest.mark.parametrize("policy", POLICIES)
def test_it_gives_its_blocks(llm, policy):
    # 8 blocks of 8. a and b have 3 each; the prompt needs 5 and finds 2.
    jobs = [batch("a", 20, 4), batch("b", 20, 4), Job("i", 40, 2, step=1, priority=9)]
    run = drive(llm, config(policy=policy), jobs, num_blocks=8, block_size=8)
    assert run.tokens()[1] == {"i": 40, "a": 1} and run.plans[1].preempted == ("b",)
    assert run.ttft("i") == 1 and run.jobs["b"].request.num_preemptions == 1


@pytest.mark.parametrize(("num_prompt", "is_preempted"), [(32, True), (40, True), (41, False), (64, False)])
def test_blocks_that_others_hold_too_are_not_its_to_give(llm, num_prompt, is_preempted):
    # Of 10 blocks of 8, d and b have 4 in common, and one each for the rest; 4 are free.
    jobs = [Job("d", range(33), 7), batch("b", range(33), 7, step=1), Job("i", num_prompt, 1, step=2)]
    run = drive(llm, config(), jobs, num_blocks=10, block_size=8, cached=True)
    assert run.plans[2].preempted == (("b",) if is_preempted and num_prompt > 32 else ())
    assert (run.ttft("i") == 1) == is_preempted


def test_it_keeps_blocks_until_they_are_needed(llm):
    # The prompt has 8 blocks to get and comes in chunks of 2: of 12, b holds 4 for two steps more.
    jobs = [batch("b", 31, 9), Job("i", 64, 1, step=1)]
    run = drive(llm, config(long_prefill_token_threshold=16), jobs, num_blocks=11, block_size=8)
    assert [plan.preempted for plan in run.plans[:5]] == [(), (), (), (), ("b",)]


def test_no_sequence_waits_for_what_it_computes(llm):
    # b has begun the prompt of i, but d leaves it no token: i computes the prompt, and b takes that.
    jobs = [batch("b", range(64), 1), Job("d", 512, 1, step=1), Job("i", range(64), 1, step=2)]
    run = drive(llm, config(max_num_batched_tokens=32, max_num_seqs=4), jobs, cached=True)
    assert run.tokens()[0] == {"b": 32}
    assert run.chunks("i") == [32] and run.chunks("b") == [32, 16], "all but the last block came from i"
    assert run.ttft("i") == 16, "as soon as d is done"


def test_it_waits_as_long_as_nothing_is_left_and_no_longer(llm):
    prompts = [Job(f"i{n}", 100, 1, step=n) for n in range(300)]
    run = drive(llm, config(max_num_batched_tokens=100, policy="priority"), [batch("b", 5, 2), *prompts])
    assert run.ttft("b") == 301, "no number of steps makes it more urgent than others"
    assert run.jobs["b"].done_step == 301


def busy(seed, count=40):
    """Requests of all sizes, of which each second one is of batch class."""
    rng = random.Random(seed)
    return [
        Job(
            f"r{i}",
            rng.choice((1, 5, 20, 60)),
            rng.randrange(1, 12),
            step=rng.randrange(60),
            priority=rng.randrange(3),
            priority_class="batch" if i % 2 == 0 else "interactive",
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(6))
def test_the_others_do_not_notice(llm, policy, seed):
    setting = config(max_num_batched_tokens=24, max_num_seqs=4, max_model_len=100, policy=policy)
    setting = replace(setting, chunk_grid=4 * (seed % 2), long_prefill_token_threshold=9 * (seed % 3))
    room = {"num_blocks": 24, "block_size": 4}
    together = drive(llm, setting, busy(seed), **room)
    alone = drive(llm, setting, [job for job in busy(seed) if job.priority_class == "interactive"], **room)
    mixed = [{n: num for n, num in step.items() if n in alone.jobs} for step in together.tokens()]
    assert mixed[: len(alone.plans)] == alone.tokens(), (
        "step by step what they get without batch-class requests"
    )
    assert any(plan.preempted for plan in together.plans), "or the pool is too large to show anything"
