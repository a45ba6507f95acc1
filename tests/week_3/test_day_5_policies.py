"""Day 3.5: the order of sequences, and how much of a step one of them may have."""

import random
from dataclasses import replace

import pytest
from tests.helpers.scheduling import Job, drive

from tiny_llm_lab.types import SchedulerConfig, UserError

# The task of each test that names no other.
pytestmark = pytest.mark.task("3.5.1")

PLAIN = SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=64, max_model_len=8192)


def config(**changes):
    return replace(PLAIN, **changes)


# Fair shares


@pytest.mark.parametrize(
    ("needs", "budget", "want"),
    [
        ([4096, 10, 300], 512, [251, 10, 251]),
        ([4096, 4096], 511, [256, 255]),
        ([10, 20], 512, [10, 20]),
        ([5, 5, 5, 5], 10, [3, 3, 2, 2]),
        ([5, 1, 5, 5], 3, [1, 1, 1, 0]),
        ([9, 2, 9, 3], 12, [4, 2, 3, 3]),
        ([7], 0, [0]),
        ([], 100, []),
    ],
)
def test_fair_shares(llm, needs, budget, want):
    assert llm.fair_shares(needs, budget) == want, f"your shares == those of {budget} tokens for {needs}"


def test_fair_shares_are_max_min_fair(llm):
    rng = random.Random(0)
    for _ in range(300):
        needs = [rng.randrange(1, 40) for _ in range(rng.randrange(1, 8))]
        budget = rng.randrange(0, 120)
        shares = llm.fair_shares(needs, budget)
        assert sum(shares) == min(budget, sum(needs)), "all of it, as long as a need is not met"
        assert all(0 <= share <= need for share, need in zip(shares, needs, strict=True))
        short = [share for share, need in zip(shares, needs, strict=True) if share < need]
        assert all(max(shares) - share <= 1 for share in short), (
            "no share exceeds a share that is below its need by more than 1"
        )
        assert short == sorted(short, reverse=True)


def test_long_prompts_share_a_step(llm):
    jobs = [Job("a", 1000, 1), Job("b", 1000, 1), Job("c", 1000, 1)]
    fair = drive(llm, config(max_num_batched_tokens=300, policy="fair"), jobs)
    assert fair.tokens()[0] == {"a": 100, "b": 100, "c": 100}
    assert [fair.ttft(name) for name in "abc"] == [10, 10, 10]
    fcfs = drive(llm, config(max_num_batched_tokens=300), [Job(job.request_id, 1000, 1) for job in jobs])
    assert [fcfs.ttft(name) for name in "abc"] == [4, 7, 10]


@pytest.mark.parametrize(("policy", "want"), [("fair", 1), ("fcfs", 8)])
def test_a_short_prompt_does_not_wait_for_a_long_one(llm, policy, want):
    jobs = [Job("d", 1, 20), Job("long", 4096, 1, step=1), Job("short", 50, 1, step=2)]
    run = drive(llm, config(max_num_batched_tokens=512, policy=policy), jobs)
    assert run.ttft("short") == want
    assert run.ttft("long") == 9, "50 tokens more do not cost the long one a step"
    assert all("d" in step for step in run.tokens()[:20])


def test_what_a_threshold_keeps_from_a_prefill_is_divided_among_the_rest(llm):
    setting = SchedulerConfig(max_num_batched_tokens=64, policy="fair", long_prefill_token_threshold=4)
    prompt = llm.TokenSequence("prompt", [1] * 100)
    decode = llm.TokenSequence("decode", [1, 2], output_token_ids=[3], num_computed_tokens=2)
    budget = llm.TokenBudget(setting, 12)
    budget.set_shares([(prompt, 0, 100), (decode, 2, 9)])
    got = {"prompt": budget.num_new_tokens(prompt, 0, 100), "decode": budget.num_new_tokens(decode, 2, 9)}
    want = {"prompt": 4, "decode": 8}
    assert got == want, "of 12 tokens the prompt needs the threshold of 4, and a decode with a draft 9"


# Priority


@pytest.mark.task("3.5.3")
def test_the_most_urgent_is_admitted_first(llm):
    jobs = [Job("first", 10, 3, priority=9), *(Job(f"p{n}", 10, 1, priority=n) for n in (2, 0, 1))]
    run = drive(llm, config(max_num_seqs=1, policy="priority"), jobs)
    assert [next(iter(step)) for step in run.tokens()] == ["p0", "p1", "p2", "first", "first", "first"]


@pytest.mark.task("3.5.3")
def test_the_least_urgent_gives_way(llm):
    # Two answers of 40 tokens in 8 blocks of 8: together they would need 12.
    jobs = [Job("low", 8, 40, priority=1), Job("high", 8, 40, step=1)]
    run = drive(llm, config(policy="priority"), jobs, num_blocks=8, block_size=8)
    assert [plan.preempted for plan in run.plans if plan.preempted] == [("low",)]
    assert run.ttft("high") == 1 and run.jobs["high"].done_step == 40
    jobs = [Job("early", 8, 40), Job("late", 8, 40, step=1)]
    run = drive(llm, config(policy="priority"), jobs, num_blocks=8, block_size=8)
    assert [plan.preempted for plan in run.plans if plan.preempted] == [("late",)], "among equals the latest"


@pytest.mark.task("3.5.3")
def test_the_least_urgent_waits_no_longer_than_stated(llm):
    limit = llm.MAX_WAITING_STEPS
    urgent = [Job(f"u{i}", 1, 2, step=i) for i in range(2 * limit)]
    run = drive(
        llm, config(max_num_seqs=1, policy="priority"), [*urgent, Job("low", 1, 1, step=1, priority=9)]
    )
    assert limit <= run.ttft("low") <= limit + 3, "then it is the next, when a place is free"


# Where chunks end, and what is mixed


@pytest.mark.task("3.5.2")
@pytest.mark.parametrize(
    ("start", "num_new", "missing", "grid", "want"),
    [
        (0, 100, 500, 64, 64),
        (64, 100, 436, 64, 64),
        (0, 64, 500, 64, 64),
        (0, 63, 500, 64, 0),
        (10, 60, 500, 64, 54),
        (448, 52, 52, 64, 52),
        (0, 100, 500, 0, 100),
        (5, 3, 3, 64, 3),
    ],
)
def test_align_to_grid(llm, start, num_new, missing, grid, want):
    assert llm.align_to_grid(start, num_new, missing, grid) == want


@pytest.mark.task("3.5.2")
def test_a_grid_takes_from_the_shares_of_long_prompts_only(llm):
    # 31 tokens beside d: shares of 16 and 15, of which only one reaches the grid.
    setting = config(max_num_batched_tokens=32, max_num_seqs=8, chunk_grid=16, policy="fair")
    run = drive(llm, setting, [Job("a", 200, 1), Job("b", 200, 1), Job("d", 1, 20)])
    assert run.tokens()[0] == {"a": 16, "d": 1}, "b gets nothing, and does not hold up d behind it"
    assert all("d" in step for step in run.tokens()[:20]), "a and b take nothing of what d needs"


@pytest.mark.task("3.5.2")
def test_the_first_cut_prompt_reaches_the_grid_if_all_prompts_together_have_enough(llm):
    draw = random.Random(5)
    for _ in range(300):
        grid, tokens = draw.choice([4, 8]), draw.randrange(1, 60)
        prompts = [(draw.randrange(20), draw.randrange(1, 30)) for _ in range(draw.randrange(1, 6))]
        needs = [
            (llm.TokenSequence(str(i), [1] * (stored + need), num_computed_tokens=stored), stored, need)
            for i, (stored, need) in enumerate(prompts)
        ]
        budget = llm.TokenBudget(config(policy="fair", chunk_grid=grid), tokens)
        budget.set_shares(needs)
        got = [budget.num_new_tokens(*each) for each in needs]
        fair = llm.fair_shares([need for _, need in prompts], tokens)
        cut = [i for i, (_, need) in enumerate(prompts) if fair[i] < need]
        if not cut:
            assert got == fair
            continue
        stored, need = prompts[cut[0]]
        way = grid - stored % grid
        if sum(fair) >= way:
            assert got[cut[0]] >= min(need, way), (grid, tokens, prompts, got)
        if sum(fair[i] for i in cut) >= way:
            others = set(range(len(prompts))) - set(cut)
            assert all(got[i] == fair[i] for i in others), "what the cut ones have is enough"


@pytest.mark.task("3.5.2")
@pytest.mark.parametrize("changes", [{"long_prefill_token_threshold": 31}, {"max_num_batched_tokens": 94}])
def test_a_grid_that_a_chunk_may_never_reach_is_refused(llm, changes):
    fine = config(chunk_grid=32, max_num_batched_tokens=95, long_prefill_token_threshold=32)
    llm.Scheduler(fine, llm.BlockPool(10))
    with pytest.raises(UserError):
        llm.Scheduler(replace(fine, **changes), llm.BlockPool(10))


@pytest.mark.task("3.5.2")
def test_a_prompt_that_has_no_slot_takes_no_share(llm):
    """The last two tokens of r0 do not end on the grid: with a part of them it could never go on."""
    setting = config(
        max_num_batched_tokens=4, max_num_seqs=2, policy="fair", chunk_grid=3, max_num_partial_prefills=1
    )
    run = drive(llm, setting, [Job("r0", 8, 1), Job("r1", 8, 1)], max_steps=20)
    assert run.chunks("r0") == run.chunks("r1") == [3, 3, 2]
