"""Day 3.4, second part: who is admitted, who waits and who has to give way."""

from dataclasses import replace

import pytest
from tests.helpers.scheduling import PLAIN, Job, config, drive
from tests.helpers.timelines import assert_steps

# Admission


@pytest.mark.task("3.4.3")
def test_places_are_limited(llm):
    run = drive(llm, config(max_num_seqs=2), [Job(name, 4, 3) for name in "abc"])
    assert [list(step) for step in run.tokens()] == [["a", "b"]] * 3 + [["c"]] * 3


@pytest.mark.task("3.4.3")
def test_no_sequence_passes_the_head_of_the_queue(llm):
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
    assert_steps(run.tokens(), [{"a": 60}, {"b": 50, "c": 10}], "b waits for a step, and c behind b")
    chunked = drive(llm, replace(whole, enable_chunked_prefill=True), jobs_again(jobs))
    assert_steps(chunked.tokens(), [{"a": 60, "b": 40}, {"b": 10, "c": 10}])


def jobs_again(jobs):
    return [replace(job, request=None, first_token_step=None, done_step=None) for job in jobs]


# Preemption


def crowded(llm, **options):
    """Two answers of 40 tokens in 8 blocks of 8 tokens: together they would need 12."""
    return drive(llm, config(**options), [Job("a", 8, 40), Job("b", 8, 40)], num_blocks=8, block_size=8)


@pytest.mark.task("3.4.3")
def test_the_last_sequence_is_preempted_and_comes_back(llm):
    run = crowded(llm)
    victims = [plan.preempted for plan in run.plans if plan.preempted]
    assert victims == [("b",)], "room runs out when both need a fifth block"
    assert run.jobs["a"].done_step == 39, "the first one does not notice"
    assert run.jobs["b"].request.num_preemptions == 1
    step = next(i for i, plan in enumerate(run.plans) if plan.preempted)
    assert step == 25 and run.tokens()[step] == {"a": 1}, "no sequence is admitted in a step that preempts"
    again = next(i for i in range(step, len(run.plans)) if "b" in run.tokens()[i])
    assert run.tokens()[again] == {"b": 8 + 25}, "prompt and answer are computed again like a prompt"
    assert run.num_computed() == 2 * 47 + (8 + 24), "what was computed of b counts twice"


@pytest.mark.task("3.4.3")
def test_no_sequence_is_preempted_for_a_draft(llm):
    pool = llm.BlockPool(4, 4)
    scheduler = llm.Scheduler(config(max_num_seqs=2), pool)
    first, second = (llm.TokenSequence(name, [1] * 6) for name in "ab")
    scheduler.add(first)
    scheduler.add(second)
    scheduler.commit(scheduler.schedule(), {"a": [7], "b": [7]})
    first.spec_token_ids = [1, 2, 3]
    plan = scheduler.schedule()
    assert (dict(plan.num_scheduled_tokens), plan.preempted) == ({"a": 1, "b": 1}, ())


@pytest.mark.task("3.4.3")
def test_a_preempted_sequence_loses_its_draft(llm):
    scheduler = llm.Scheduler(config(max_num_seqs=2, long_prefill_token_threshold=4), llm.BlockPool(4, 4))
    first, second = (llm.TokenSequence(name, [1] * 4) for name in "ab")
    scheduler.add(first)
    scheduler.add(second)
    for token in range(5):
        scheduler.commit(scheduler.schedule(), {"a": [token], "b": [token]})
    second.spec_token_ids = [1, 2, 3]
    assert scheduler.schedule().preempted == ("b",), "or no block was missing"
    scheduler.finish("a")
    chunks = []
    while second.num_computed_tokens < second.num_tokens:
        plan = scheduler.schedule()
        chunks.append(plan.num_scheduled_tokens["b"])
        second.num_computed_tokens += chunks[-1]
    assert chunks == [4, 4, 1], (
        "chunks of its 4 tokens of prompt and 5 of answer, and none for an old draft of 3"
    )


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
    assert not scheduler.abort("b") and not scheduler.abort("unknown")
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
