"""Day 3.4: what a step computes of several requests, and what the scheduler refuses."""

import pytest
from tests.helpers.scheduling import PLAIN, Job, config, drive

from tiny_llm_lab.types import UserError

pytestmark = pytest.mark.task("3.4.2")


def storm(llm, budget, threshold):
    """Two victims decode; five prompts of 256 tokens come in five consecutive steps and make 2 tokens."""
    jobs = [Job("v", 1, 60), Job("w", 1, 60)]
    jobs += [Job(f"b{i}", 256, 2, step=1 + i) for i in range(5)]
    run = drive(llm, config(max_num_batched_tokens=budget, long_prefill_token_threshold=threshold), jobs)
    assert run.num_computed() == 1403 + 2, "1403 beside the first step, in which both victims compute 1 token"
    return run.costs("v"), [run.ttft(f"b{i}") for i in range(5)]


def test_a_storm_of_chunks_adds_up(llm):
    costs, ttft = storm(llm, 1024, 32)
    assert costs[:13] == [34, 66, 98, 130, 162, 162, 162, 162, 131, 99, 67, 35, 3]
    assert max(costs) == 162, "the threshold bounds one request: five of them may come together"
    assert ttft == [8] * 5


def test_the_budget_bounds_a_storm(llm):
    costs, ttft = storm(llm, 128, 32)
    assert max(costs) == 128
    assert ttft == [8, 8, 8, 9, 13]


def test_running_first_then_waiting_each_in_order(llm):
    jobs = [Job(name, 10, 3) for name in "cab"] + [Job("z", 10, 3, step=1), Job("y", 10, 3, step=1)]
    run = drive(llm, PLAIN, jobs)
    assert [list(step) for step in run.tokens()[:2]] == [["c", "a", "b"], ["c", "a", "b", "z", "y"]]


def test_a_smaller_budget_for_one_step(llm):
    scheduler = llm.Scheduler(PLAIN, llm.BlockPool(200, 16))
    scheduler.add(llm.TokenSequence("r", list(range(3000))))
    for token_budget, want in ((100, 100), (1, 1), (9999, 2048), (None, 851)):
        plan = scheduler.schedule(token_budget)
        assert dict(plan.num_scheduled_tokens) == {"r": want}
        scheduler.commit(plan, {"r": [1]} if token_budget is None else {})
    with pytest.raises(UserError):
        scheduler.schedule(0)


def test_a_draft_is_computed_with_the_token_before_it(llm):
    pool = llm.BlockPool(10, 4)
    scheduler = llm.Scheduler(config(max_num_batched_tokens=64), pool)
    request = llm.TokenSequence("r", [1, 2, 3])
    scheduler.add(request)
    scheduler.commit(scheduler.schedule(), {"r": [10]})
    request.spec_token_ids = [11, 12, 13]
    plan = scheduler.schedule()
    assert dict(plan.num_scheduled_tokens) == {"r": 4}
    assert len(request.block_ids) == 2, "3 + 4 tokens need two blocks of 4"
    scheduler.commit(plan, {"r": [11, 99]})
    assert request.output_token_ids == [10, 11, 99]
    assert request.num_computed_tokens == 5, "12 and 13 were computed in vain"
    request.spec_token_ids = [1] * 50
    assert scheduler.schedule(8).total_num_scheduled_tokens == 8, "a draft does not raise the budget"
    assert scheduler.schedule().total_num_scheduled_tokens == 35, "nor all blocks: 40 tokens, 5 are there"


@pytest.mark.parametrize(
    ("prompt", "reason"), [([], "empty"), (list(range(4097)), "max_model_len"), (list(range(161)), "blocks")]
)
def test_a_request_that_can_never_run_is_refused(llm, prompt, reason):
    scheduler = llm.Scheduler(PLAIN, llm.BlockPool(300 if reason == "max_model_len" else 10, 16))
    with pytest.raises(UserError, match=reason):
        scheduler.add(llm.TokenSequence("r", prompt))
    assert list(scheduler.waiting) == []


def test_ids_are_unique_and_requests_new(llm):
    scheduler = llm.Scheduler(PLAIN, llm.BlockPool(10, 16))
    scheduler.add(llm.TokenSequence("r", [1]))
    with pytest.raises(UserError):
        scheduler.add(llm.TokenSequence("r", [2]))
    with pytest.raises(ValueError):
        scheduler.add(llm.TokenSequence("s", [2], num_computed_tokens=1))


def test_a_full_request_must_be_finished(llm):
    scheduler = llm.Scheduler(config(max_model_len=4), llm.BlockPool(10, 2))
    assert scheduler.max_num_tokens == 4
    assert llm.Scheduler(PLAIN, llm.BlockPool(10, 2)).max_num_tokens == 20
    scheduler.add(llm.TokenSequence("r", [1, 2, 3, 4]))
    scheduler.commit(scheduler.schedule(), {"r": [5]})
    with pytest.raises(ValueError):
        scheduler.schedule()
    scheduler.finish("r")
    assert scheduler.pool.num_free == 10
