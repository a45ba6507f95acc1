"""Day 3.4, second part: who is admitted, who waits and who has to give way."""

from dataclasses import replace

import pytest
from tests.helpers.scheduling import Job, drive

from tiny_llm_lab.types import SchedulerConfig, UserError

PLAIN = SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=64, max_model_len=4096)


def config(**changes):
    return replace(PLAIN, **changes)


def storm(llm, budget, threshold):
    """Two victims decode; five prompts of 256 tokens come in five consecutive steps and make 2 tokens."""
    jobs = [Job("v", 1, 60), Job("w", 1, 60)]
    jobs += [Job(f"b{i}", 256, 2, step=1 + i) for i in range(5)]
    run = drive(llm, config(max_num_batched_tokens=budget, long_prefill_token_threshold=threshold), jobs)
    assert run.num_computed() == 1403 + 2, "1403 beside the first step, in which both victims compute 1 token"
    return run.costs("v"), [run.ttft(f"b{i}") for i in range(5)]


@pytest.mark.task("3.4.2")
def test_a_storm_of_whole_prompts(llm):
    costs, ttft = storm(llm, 1024, 0)
    assert costs[:8] == [258, 259, 259, 259, 259, 3, 2, 2]
    assert ttft == [1] * 5


@pytest.mark.task("3.4.2")
def test_a_storm_of_chunks_adds_up(llm):
    costs, ttft = storm(llm, 1024, 32)
    assert costs[:13] == [34, 66, 98, 130, 162, 162, 162, 162, 131, 99, 67, 35, 3]
    assert max(costs) == 162, "the threshold bounds one request: five of them may come together"
    assert ttft == [8] * 5


@pytest.mark.task("3.4.2")
def test_the_budget_bounds_a_storm(llm):
    costs, ttft = storm(llm, 128, 32)
    assert max(costs) == 128
    assert ttft == [8, 8, 8, 9, 13]


@pytest.mark.task("3.4.2")
def test_two_decodes_leave_2046(llm):
    jobs = [Job("d", 1, 9), Job("e", 1, 9), Job("b", 4096, 1, step=1), Job("a", 4096, 1, step=1)]
    run = drive(llm, PLAIN, jobs)
    assert run.tokens()[1] == {"d": 1, "e": 1, "b": 2046}, "nothing is left for a in a budget of 2048"


@pytest.mark.task("3.4.2")
def test_running_first_then_waiting_each_in_order(llm):
    jobs = [Job(name, 10, 3) for name in "cab"] + [Job("z", 10, 3, step=1), Job("y", 10, 3, step=1)]
    run = drive(llm, PLAIN, jobs)
    assert [list(step) for step in run.tokens()[:2]] == [["c", "a", "b"], ["c", "a", "b", "z", "y"]]


@pytest.mark.task("3.4.2")
def test_a_smaller_budget_for_one_step(llm):
    scheduler = llm.Scheduler(PLAIN, llm.BlockPool(200, 16))
    scheduler.add(llm.TokenSequence("r", list(range(3000))))
    for token_budget, want in ((100, 100), (1, 1), (9999, 2048), (None, 851)):
        plan = scheduler.schedule(token_budget)
        assert dict(plan.num_scheduled_tokens) == {"r": want}
        scheduler.commit(plan, {"r": [1]} if token_budget is None else {})
    with pytest.raises(UserError):
        scheduler.schedule(0)


@pytest.mark.task("3.4.2")
def test_a_guess_is_computed_with_the_token_before_it(llm):
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
    assert scheduler.schedule(8).total_num_scheduled_tokens == 8, "a guess is no reason to pass the budget"
    assert scheduler.schedule().total_num_scheduled_tokens == 35, "nor all blocks: 40 tokens, 5 are there"


@pytest.mark.task("3.4.2")
@pytest.mark.parametrize(
    ("prompt", "reason"), [([], "empty"), (list(range(4097)), "max_model_len"), (list(range(161)), "blocks")]
)
def test_a_request_that_can_never_run_is_refused(llm, prompt, reason):
    scheduler = llm.Scheduler(PLAIN, llm.BlockPool(300 if reason == "max_model_len" else 10, 16))
    with pytest.raises(UserError, match=reason):
        scheduler.add(llm.TokenSequence("r", prompt))
    assert list(scheduler.waiting) == []


@pytest.mark.task("3.4.2")
def test_ids_are_unique_and_requests_new(llm):
    scheduler = llm.Scheduler(PLAIN, llm.BlockPool(10, 16))
    scheduler.add(llm.TokenSequence("r", [1]))
    with pytest.raises(UserError):
        scheduler.add(llm.TokenSequence("r", [2]))
    with pytest.raises(ValueError):
        scheduler.add(llm.TokenSequence("s", [2], num_computed_tokens=1))


@pytest.mark.task("3.4.2")
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


# Admission


@pytest.mark.task("3.4.3")
def test_places_are_limited(llm):
    run = drive(llm, config(max_num_seqs=2), [Job(name, 4, 3) for name in "abc"])
    assert [list(step) for step in run.tokens()] == [["a", "b"]] * 3 + [["c"]] * 3


@pytest.mark.task("3.4.3")
def test_nobody_passes_the_head_of_the_queue(llm):
    # 10 blocks: a has 4 and takes a fifth, b needs 6. c would fit, but it came after b.
    jobs = [Job("a", 64, 5), Job("b", 96, 1), Job("c", 16, 1)]
    run = drive(llm, PLAIN, jobs, num_blocks=9)
    assert [list(step) for step in run.tokens()] == [["a"]] * 5 + [["b", "c"]]


@pytest.mark.task("3.4.3")
def test_a_prompt_is_begun_only_when_there_is_room_for_all_of_it(llm):
    # In chunks of 16 both would fit for some steps; then one would have to give way.
    jobs = [Job("a", 96, 1), Job("b", 96, 1)]
    run = drive(llm, config(long_prefill_token_threshold=16), jobs, num_blocks=10)
    assert all(not plan.preempted for plan in run.plans)
    assert [list(step) for step in run.tokens()] == [["a"]] * 6 + [["b"]] * 6


@pytest.mark.task("3.4.3")
def test_without_chunks_a_prompt_waits_for_room_in_the_budget(llm):
    jobs = [Job("a", 60, 1), Job("b", 50, 1), Job("c", 10, 1)]
    whole = config(max_num_batched_tokens=100, max_model_len=100, enable_chunked_prefill=False)
    run = drive(llm, whole, jobs)
    assert run.tokens() == [{"a": 60}, {"b": 50, "c": 10}], "b waits for a step, and c behind b"
    chunked = drive(llm, replace(whole, enable_chunked_prefill=True), jobs_again(jobs))
    assert chunked.tokens() == [{"a": 60, "b": 40}, {"b": 10, "c": 10}]


def jobs_again(jobs):
    return [replace(job, request=None, first_token_step=None, done_step=None) for job in jobs]


# Preemption


def crowded(llm, **options):
    """Two answers of 40 tokens in 8 blocks of 8 tokens: together they would need 12."""
    return drive(llm, config(**options), [Job("a", 8, 40), Job("b", 8, 40)], num_blocks=8, block_size=8)


@pytest.mark.task("3.4.3")
def test_who_came_last_gives_way_and_comes_back(llm):
    run = crowded(llm)
    victims = [plan.preempted for plan in run.plans if plan.preempted]
    assert victims == [("b",)], "room runs out when both need a fifth block"
    assert run.jobs["a"].done_step == 39, "the first one does not notice"
    assert run.jobs["b"].request.num_preemptions == 1
    step = next(i for i, plan in enumerate(run.plans) if plan.preempted)
    assert step == 25 and run.tokens()[step] == {"a": 1}, "nobody is admitted in a step that preempts"
    again = next(i for i in range(step, len(run.plans)) if "b" in run.tokens()[i])
    assert run.tokens()[again] == {"b": 8 + 25}, "prompt and answer are computed again like a prompt"
    assert run.num_computed() == 2 * 47 + (8 + 24), "what was computed of b counts twice"


@pytest.mark.task("3.4.3")
@pytest.mark.parametrize("threshold", [0, 3])
def test_preemption_changes_no_answer(llm, threshold):
    run = crowded(llm, long_prefill_token_threshold=threshold)
    alone = drive(llm, PLAIN, [Job("a", 8, 40), Job("b", 8, 40)])
    for name in "ab":
        assert run.jobs[name].request.output_token_ids == alone.jobs[name].request.output_token_ids


@pytest.mark.task("3.4.3")
def test_who_was_preempted_stands_before_those_who_never_ran(llm):
    jobs = [Job("a", 8, 40), Job("b", 8, 40), Job("c", 8, 4, step=20)]
    seen = []

    def look(step, scheduler):
        seen.append(([r.request_id for r in scheduler.running], [r.request_id for r in scheduler.waiting]))

    drive(llm, config(max_num_seqs=2), jobs, num_blocks=8, block_size=8, before_step=look)
    assert (["a", "b"], ["c"]) in seen
    assert (["a"], ["b", "c"]) in seen


@pytest.mark.task("3.4.3")
def test_nobody_is_preempted_for_a_guess(llm):
    pool = llm.BlockPool(4, 4)
    scheduler = llm.Scheduler(config(max_num_seqs=2), pool)
    first, second = (llm.TokenSequence(name, [1] * 6) for name in "ab")
    scheduler.add(first)
    scheduler.add(second)
    scheduler.commit(scheduler.schedule(), {"a": [7], "b": [7]})
    first.spec_token_ids = [1, 2, 3]
    plan = scheduler.schedule()
    assert (dict(plan.num_scheduled_tokens), plan.preempted) == ({"a": 1, "b": 1}, ())


# The end


@pytest.mark.task("3.4.3")
def test_finish_and_abort(llm):
    pool = llm.BlockPool(10, 16)
    scheduler = llm.Scheduler(config(max_num_seqs=1), pool)
    for name in "abc":
        scheduler.add(llm.TokenSequence(name, [1] * 20))
    plan = scheduler.schedule()
    assert pool.num_free == 8
    with pytest.raises(ValueError):
        scheduler.finish("b")
    assert scheduler.abort("b"), "it waits, and waits no more"
    assert not scheduler.abort("b") and not scheduler.abort("nobody")
    assert scheduler.abort("a") and pool.num_free == 10
    scheduler.commit(plan, {"a": [5]})
    with pytest.raises(ValueError):
        scheduler.finish("a")
    assert [request.request_id for request in scheduler.waiting] == ["c"]
    assert list(scheduler.schedule().num_scheduled_tokens) == ["c"]
    scheduler.add(llm.TokenSequence("a", [1] * 20))
    scheduler.check()
    scheduler.finish("c")
    assert pool.num_free == 10


@pytest.mark.task("3.4.3")
def test_check_finds_a_block_that_was_given_away(llm):
    pool = llm.BlockPool(10, 16)
    scheduler = llm.Scheduler(PLAIN, pool)
    request = llm.TokenSequence("a", [1] * 20)
    scheduler.add(request)
    scheduler.schedule()
    scheduler.check()
    pool.free(request.block_ids[:1])
    with pytest.raises(RuntimeError):
        scheduler.check()
