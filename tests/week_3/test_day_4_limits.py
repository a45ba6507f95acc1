"""Day 3.4: the share of one sequence, prompts computed at a time, and what the prefix cache counts."""

import pytest
from tests.helpers.scheduling import Job, drive

from tiny_llm_lab.types import SchedulerConfig


def sequence_of(llm, num_prompt_tokens, num_computed=0, num_output_tokens=0):
    made = llm.TokenSequence("r", list(range(num_prompt_tokens)))
    made.output_token_ids += [7] * num_output_tokens
    made.num_computed_tokens = num_computed
    return made


# The budget of a step


@pytest.mark.task("3.4.5")
@pytest.mark.parametrize(
    ("threshold", "left", "num_missing", "want"),
    [
        (0, 100, 40, 40),
        (0, 30, 40, 30),
        (16, 100, 40, 16),
        (16, 100, 9, 9),
        (16, 5, 40, 5),
        (16, 0, 40, 0),
    ],
)
def test_a_prefill_gets_what_is_missing_left_and_allowed(llm, threshold, left, num_missing, want):
    config = SchedulerConfig(max_num_batched_tokens=128, long_prefill_token_threshold=threshold)
    sequence = sequence_of(llm, 60, 60 - num_missing)
    num_new = llm.TokenBudget(config, left).num_new_tokens(sequence, 60 - num_missing, num_missing)
    assert num_new == want, f"a prefill that misses {num_missing}, {left} left, threshold {threshold}"


@pytest.mark.task("3.4.5")
@pytest.mark.parametrize(("left", "num_missing", "want"), [(9, 1, 1), (9, 5, 5), (3, 5, 3), (0, 1, 0)])
@pytest.mark.parametrize(
    "config",
    [
        SchedulerConfig(max_num_batched_tokens=128, long_prefill_token_threshold=2),
        SchedulerConfig(max_num_batched_tokens=128, max_model_len=128, enable_chunked_prefill=False),
    ],
)
def test_the_rules_of_prefills_do_not_hold_for_a_decode(llm, config, left, num_missing, want):
    # It misses one token, and those of its draft.
    num_new = llm.TokenBudget(config, left).num_new_tokens(sequence_of(llm, 10, 10, 1), 10, num_missing)
    assert num_new == want, f"a decode that misses {num_missing} tokens, with {left} left of the budget"


@pytest.mark.task("3.4.5")
@pytest.mark.parametrize(("left", "want"), [(40, 40), (39, 0), (100, 40)])
def test_without_chunked_prefill_a_prompt_gets_all_or_nothing(llm, left, want):
    config = SchedulerConfig(max_num_batched_tokens=128, max_model_len=128, enable_chunked_prefill=False)
    num_new = llm.TokenBudget(config, left).num_new_tokens(sequence_of(llm, 40), 0, 40)
    assert num_new == want, f"a prompt of 40 tokens, {left} left of the budget"


@pytest.mark.task("3.4.5")
def test_what_is_assigned_is_taken_from_the_budget(llm):
    budget = llm.TokenBudget(SchedulerConfig(), 50)
    assert (budget.left, budget.assigned) == (50, {})
    prefill, decode = sequence_of(llm, 40), llm.TokenSequence("d", [1, 2])
    decode.output_token_ids.append(3)
    decode.num_computed_tokens = 2
    budget.assign(prefill, 40)
    budget.assign(decode, 4)
    assert (budget.left, budget.assigned) == (6, {"r": 40, "d": 4})
    assert list(budget.assigned) == ["r", "d"], "the order of the rows"


# How many prompts are computed at a time


def prefills_at_a_time(llm, limit, jobs, **settings):
    """For every step, how many prompts that it did not finish before got tokens in it."""
    config = SchedulerConfig(
        max_num_batched_tokens=64, long_prefill_token_threshold=8, max_num_partial_prefills=limit, **settings
    )
    run = drive(llm, config, jobs)
    done: dict[str, int] = {}
    counts = []
    for step in run.tokens():
        counts.append(sum(done.get(name, 0) < len(run.jobs[name].prompt_token_ids) for name in step))
        for name, num_new in step.items():
            done[name] = done.get(name, 0) + num_new
    return run, counts


@pytest.mark.task("3.4.3")
@pytest.mark.parametrize("limit", [1, 2, 3, 0])
def test_no_more_prompts_are_computed_at_a_time_than_the_limit(llm, limit):
    jobs = [Job(f"r{i}", 20, 2) for i in range(6)]
    run, counts = prefills_at_a_time(llm, limit, jobs)
    assert max(counts) == (limit or 6), "0 is no limit"
    assert all(run.chunks(f"r{i}")[:3] == [8, 8, 4] for i in range(6)), "each prompt goes on until it is done"


@pytest.mark.task("3.4.3")
def test_decodes_do_not_count_as_prefills(llm):
    jobs = [Job("a", 8, 30), Job("b", 8, 30, step=1), Job("c", 20, 2, step=2), Job("d", 20, 2, step=2)]
    run, _ = prefills_at_a_time(llm, 1, jobs)
    assert run.ttft("c") == 3, "two decodes run, and its prompt begins at once"
    assert run.ttft("d") == 3 + 3, "its prompt begins in the step after the last chunk of the one before"


# What the prefix cache counts


@pytest.mark.task("3.4.3")
def test_a_preempted_sequence_asks_the_prefix_cache_once(llm):
    seen = []
    jobs = [Job(f"r{i}", 30, 60) for i in range(4)]
    run = drive(
        llm,
        SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=4),
        jobs,
        num_blocks=12,
        cached=True,
        before_step=lambda step, scheduler: seen.append(scheduler.prefix_cache),
    )
    assert sum(len(plan.preempted) for plan in run.plans) > 0, "or nothing is asked for twice"
    cache = seen[0]
    assert cache.num_query_tokens == 4 * 30
    assert cache.num_hit_tokens == 0, "no two prompts begin alike; what a preempted one finds is its own"
