"""Day 3.4, third part: the scheduler with a prefix cache. What is shared is scheduled once."""

import pytest
from tests.helpers.scheduling import PLAIN, Job, config, drive
from tests.helpers.timelines import assert_steps

pytestmark = pytest.mark.task("3.4.3")


def families(apart):
    """Eight prompts, `apart` steps apart, with 64 tokens in common and 4 of their own."""
    own = [range(1000 * (i + 1), 1000 * (i + 1) + 4) for i in range(8)]
    return [Job(f"r{i}", [*range(64), *rest], 1, step=i * apart) for i, rest in enumerate(own)]


def prompt_tokens(run):
    return sum(sum(run.chunks(name)) for name in run.jobs)


@pytest.mark.parametrize("apart", [0, 1, 3])
def test_eight_prompts_with_64_tokens_in_common(llm, apart):
    without = drive(llm, PLAIN, families(apart))
    shared = drive(llm, PLAIN, families(apart), cached=True)
    assert prompt_tokens(without) == 544
    assert prompt_tokens(shared) == 96, "68 of the first one and 4 of each later one"
    assert prompt_tokens(without) - prompt_tokens(shared) == 7 * 16 * 4
    if apart == 0:
        assert_steps(shared.tokens(), [{"r0": 68}, {f"r{i}": 4 for i in range(1, 8)}])


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
