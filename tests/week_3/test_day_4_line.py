"""Day 3.4: the request queue; who is admitted, who waits, who gives way; the share of one sequence."""

from dataclasses import replace

import pytest
from tests.helpers.scheduling import PLAIN, Job, config, drive
from tests.helpers.timelines import assert_steps

from tiny_llm_lab.types import SchedulerConfig

# The task of each test that names no other.
pytestmark = pytest.mark.task("3.4.3")


@pytest.mark.task("3.4.4")
@pytest.mark.parametrize(
    ("running", "waiting", "places", "want"),
    [
        ("iib", "ib", 9, ["ii i", "b b"]),
        ("iib", "iiibb", 4, ["ii ii", "b "]),  # one of two finds the place of the b that runs
        ("bbb", "iib", 3, [" ii", "bbb "]),
        ("bb", "ibb", 4, [" i", "bb b"]),
        ("i", "bbbb", 3, ["i ", " bb"]),
        ("ii", "ib", 2, ["ii ", " "]),
        ("", "", 2, [" ", " "]),
    ],
)
def test_which_sequences_find_a_slot(llm, running, waiting, places, want):
    queue = llm.RequestQueue("fcfs")
    for letter in running:
        queue.add(llm.TokenSequence(letter, [1], priority_class="batch" if letter == "b" else "interactive"))
    for _ in running:
        queue.admit()
    for letter in waiting:
        queue.add(llm.TokenSequence(letter, [1], priority_class="batch" if letter == "b" else "interactive"))
    found = [(queue.running_of(rank), queue.candidates(rank, places)) for rank in (0, 1)]
    assert [" ".join("".join(s.request_id for s in part) for part in parts) for parts in found] == want
    assert list(queue.ranks) == list(range(1 + ("b" in running + waiting))) * bool(running + waiting)


@pytest.mark.task("3.4.4")
@pytest.mark.parametrize("priority_class", ["interactive", "batch"])
def test_the_order_of_priorities(llm, priority_class):
    def key(policy, is_aged=False):
        request = llm.TokenSequence("r", [1], 3, 2.0, priority_class)
        return llm.order_key(policy, request, 7, is_aged)

    rank = int(priority_class == "batch")
    assert key("priority") == (rank, 1, 3, 2.0, 7), "class, not aged, priority, arrival, added"
    assert key("priority", True) == (rank, 0, 0, 0, 7), "however long it waited, its class comes first"
    for policy in ("fcfs", "fair"):
        assert key(policy) == (rank, 1, 0, 0, 7), "of a class the one added first"


@pytest.mark.task("3.4.4")
def test_first_in_is_admitted_first_and_preempted_last(llm):
    queue = llm.RequestQueue("fcfs")
    a, b, c = (llm.TokenSequence(name, [1]) for name in "abc")
    for each in (a, b, c):
        queue.add(each)
    assert [queue.admit(), queue.admit()] == [a, b]
    assert (queue.running, queue.waiting) == ([a, b], [c])
    assert queue.preempt() is b
    assert (queue.running, queue.waiting) == ([a], [b, c]), "in its old place in the order"
    assert [queue.is_waiting(each) for each in (a, b, c)] == [False, True, True]
    queue.remove(b)
    queue.remove(a)
    assert (queue.running, queue.waiting) == ([], [c])
    assert [queue.is_waiting(each) for each in (a, b, c)] == [False, False, True], "a and b were removed"


# Day 3.4, second part: who is admitted, who waits and who has to give way


# Admission


def test_places_are_limited(llm):
    run = drive(llm, config(max_num_seqs=2), [Job(name, 4, 3) for name in "abc"])
    assert [list(step) for step in run.tokens()] == [["a", "b"]] * 3 + [["c"]] * 3


def test_no_sequence_passes_the_head_of_the_queue(llm):
    # 10 blocks: a has 4 and takes a fifth, b needs 6. c would fit, but it came after b.
    jobs = [Job("a", 64, 5), Job("b", 96, 1), Job("c", 16, 1)]
    run = drive(llm, PLAIN, jobs, num_blocks=9)
    assert [list(step) for step in run.tokens()] == [["a"]] * 5 + [["b", "c"]]


def test_a_prompt_is_begun_only_when_there_is_room_for_all_of_it(llm):
    # In chunks of 16 both would fit for some steps; then one would have to give way.
    jobs = [Job("a", 96, 1), Job("b", 96, 1)]
    run = drive(llm, config(long_prefill_token_threshold=16), jobs, num_blocks=10)
    assert all(not plan.preempted for plan in run.plans)
    assert [list(step) for step in run.tokens()] == [["a"]] * 6 + [["b"]] * 6


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


# The share of one sequence, prompts computed at a time, and what the prefix cache counts


def sequence_of(llm, num_prompt_tokens, num_computed=0, num_output_tokens=0):
    made = llm.TokenSequence("r", list(range(num_prompt_tokens)))
    made.output_token_ids += [7] * num_output_tokens
    made.num_computed_tokens = num_computed
    return made


# The budget of a step


BUDGET = SchedulerConfig(max_num_batched_tokens=128, max_model_len=128)
IN_16 = replace(BUDGET, long_prefill_token_threshold=16)
WHOLE = replace(BUDGET, enable_chunked_prefill=False)


@pytest.mark.task("3.4.5")
@pytest.mark.parametrize(
    ("config", "left", "num_missing", "want"),
    [
        (BUDGET, 100, 40, 40),
        (BUDGET, 30, 40, 30),
        (IN_16, 100, 40, 16),
        (IN_16, 100, 9, 9),
        (IN_16, 5, 40, 5),
        (IN_16, 0, 40, 0),
        (WHOLE, 40, 40, 40),
        (WHOLE, 39, 40, 0),  # all or nothing
    ],
)
def test_a_prefill_gets_what_is_missing_left_and_allowed(llm, config, left, num_missing, want):
    sequence = sequence_of(llm, num_missing)
    num_new = llm.TokenBudget(config, left).num_new_tokens(sequence, 0, num_missing)
    assert num_new == want, f"a prefill that misses {num_missing}, {left} left, {config}"


@pytest.mark.task("3.4.5")
@pytest.mark.parametrize(("left", "num_missing", "want"), [(19, 1, 1), (19, 18, 18), (3, 5, 3), (0, 1, 0)])
@pytest.mark.parametrize("config", [IN_16, WHOLE])
def test_the_rules_of_prefills_do_not_hold_for_a_decode(llm, config, left, num_missing, want):
    # It misses one token, and those of its draft.
    num_new = llm.TokenBudget(config, left).num_new_tokens(sequence_of(llm, 10, 10, 1), 10, num_missing)
    assert num_new == want, f"a decode that misses {num_missing} tokens, with {left} left of the budget"


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


def test_prompts_are_computed_one_at_a_time_and_decodes_do_not_count(llm):
    setting = config(long_prefill_token_threshold=8, max_num_partial_prefills=1)
    jobs = [Job("a", 8, 30), Job("b", 8, 30, step=1), Job("c", 20, 2, step=2), Job("d", 20, 2, step=2)]
    run = drive(llm, setting, jobs)
    assert run.ttft("c") == 3, "two decodes run, and its prompt begins at once"
    assert run.ttft("d") == 3 + 3, "its prompt begins in the step after the last chunk of the one before"


# What the prefix cache counts


def test_a_preempted_sequence_asks_the_prefix_cache_once(llm):
    seen = []
    jobs = [Job(f"r{i}", 30, 60) for i in range(4)]
    run = drive(
        llm,
        SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=4),
        jobs,
        num_blocks=14,
        cached=True,
        before_step=lambda step, scheduler: seen.append(scheduler.prefix_cache),
    )
    assert sum(len(plan.preempted) for plan in run.plans) > 0, "or nothing is asked for twice"
    cache = seen[0]
    assert cache.num_query_tokens == 4 * 30
    assert cache.num_hit_tokens == 0, "no two prompts begin alike; what a preempted one finds is its own"
    assert [job.request.num_cached_tokens for job in run.jobs.values()] == [0] * 4
