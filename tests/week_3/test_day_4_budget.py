"""Day 3.4: the token budget. Schedules that must come out to the token."""

from dataclasses import replace

import pytest
from tests.helpers.scheduling import Job, drive, request_of

from tiny_llm_lab.types import SchedulerConfig, StepPlan

pytestmark = pytest.mark.task("3.4.2")


def config(budget=2048, threshold=0, **changes):
    seqs = min(64, budget)
    plain = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=seqs, max_model_len=40_000)
    return replace(plain, long_prefill_token_threshold=threshold, **changes)


# One request alone


def test_a_lone_prompt_takes_the_steps_of_the_formula(llm):
    for prompt_len in (*range(1, 34), 64, 100, 255):
        for threshold in (0, 1, 3, 8, 16, 31, 64, 300):
            for budget in (1, 2, 7, 8, 16, 100, 256):
                run = drive(llm, config(budget, threshold), [Job("a", prompt_len, 1)])
                want = llm.num_prefill_steps(prompt_len, threshold, budget)
                assert len(run.plans) == want, (prompt_len, threshold, budget)
                size = min(threshold or budget, budget)
                chunks = [size] * (prompt_len // size) + [prompt_len % size] * (prompt_len % size > 0)
                assert run.chunks("a") == chunks, (prompt_len, threshold, budget)


def test_nothing_is_sampled_in_the_middle_of_a_prompt(llm):
    scheduler = llm.Scheduler(config(32), llm.BlockPool(100, 16))
    request = request_of(llm, 80)
    scheduler.add(request)
    for num_computed in (32, 64):
        plan = scheduler.schedule()
        assert plan == StepPlan({"r": 32})
        with pytest.raises(ValueError):
            scheduler.commit(plan, {"r": [5]})
        scheduler.commit(plan, {})
        assert (request.num_computed_tokens, request.output_token_ids) == (num_computed, [])
    plan = scheduler.schedule()
    with pytest.raises(ValueError):
        scheduler.commit(plan, {})
    scheduler.commit(plan, {"r": [5]})
    assert request.output_token_ids == [5]


# Decodes among prefills


SPIKES = {
    0: [257, 2] + [1] * 13,
    16: [17] * 15,
    32: [33] * 8 + [2] + [1] * 6,
    64: [65] * 4 + [2] + [1] * 10,
    128: [129] * 2 + [2] + [1] * 12,
    256: [257, 2] + [1] * 13,
}


@pytest.mark.parametrize("threshold", SPIKES)
def test_what_a_long_prompt_costs_its_neighbour(llm, threshold):
    """A decodes from step 0 on, B's long prompt comes in step 1 and makes two tokens."""
    run = drive(llm, config(2048, threshold), [Job("A", 1, 16), Job("B", 256, 2, step=1)])
    costs = run.costs("A")
    assert costs == SPIKES[threshold]
    assert sum(costs) == (255 if threshold == 16 else 272), "16 tokens end before B's prompt does"
    assert run.ttft("B") == {0: 1, 16: 16, 32: 8, 64: 4, 128: 2, 256: 1}[threshold]


# Steps that alternate


def test_prefills_and_decodes_alternate(llm):
    jobs = [Job("a", 1, 6), Job("b", 100, 3, step=1)]
    setting = config(40, max_num_seqs=4, step_mode="alternate")
    run = drive(llm, setting, jobs)
    prefill, decode = {"b": 40}, {"a": 1}
    assert run.tokens()[:7] == [decode, decode, prefill, decode, prefill, decode, {"b": 20}]
    assert run.tokens()[7:] == [{"a": 1, "b": 1}, {"a": 1, "b": 1}]
