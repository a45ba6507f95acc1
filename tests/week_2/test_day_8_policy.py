"""Day 2.8: the order of prompts that wait, the rows that batch prompts leave free, and both in the loop."""

import random

import pytest
from tests.helpers.any_batch import AnyBatch
from tests.helpers.fakes import FakeClock, live_requests
from tests.helpers.phases import CHUNK_S, DECODE_S, limited, run_all, text_of, timed_model
from tests.helpers.prefills import arrival, computed

from tiny_llm_lab.types import Arrivals, PrefillEvent, TokenEvent, UserError

# The task of each test that names no other.
pytestmark = pytest.mark.task("2.8.6")


def popped(scheduler, now_s):
    order = []
    while (head := scheduler.peek(now_s)) is not None:
        assert scheduler.pop(now_s) is head, "pop returns what peek has shown"
        order.append(head.prompt_idx)
    return order


def filled(llm, *arrivals, **settings):
    scheduler = llm.PriorityScheduler(**settings)
    for each in arrivals:
        scheduler.push(each)
    return scheduler


@pytest.mark.task("2.8.1")
def test_a_scheduler_without_prompts_has_none_to_show(llm):
    scheduler = llm.PriorityScheduler()
    assert scheduler.peek(0.0) is None and scheduler.pop(0.0) is None and len(scheduler) == 0
    scheduler.push(arrival(0))
    assert scheduler.pop(0.0).prompt_idx == 0
    assert scheduler.pop(0.0) is None, "a queue that has become empty"


@pytest.mark.task("2.8.1")
@pytest.mark.parametrize(("now_s", "want"), [(12.0, [2, 0, 1]), (12.01, [0, 2, 1]), (14.0, [0, 1, 2])])
def test_a_batch_prompt_that_waits_too_long_goes_first(llm, now_s, want):
    # max_wait_s is 10: at 12 s the prompt of 2 s has waited exactly as long, which is not longer.
    scheduler = filled(llm, arrival(0, 2.0), arrival(1, 3.0), arrival(2, 1.0, "interactive"), max_wait_s=10)
    what = "numbers of the prompts in the order of pop: 0 and 1 are of class batch, 2 is interactive"
    assert popped(scheduler, now_s) == want, what


@pytest.mark.task("2.8.1")
@pytest.mark.parametrize("max_wait_s", [0.0, 3.0, 20.0])
def test_no_stream_of_interactive_prompts_starves_a_batch_prompt(llm, max_wait_s):
    # A prompt is taken every second, and an interactive one arrives in every second.
    scheduler = filled(llm, arrival(0, 0.0), max_wait_s=max_wait_s)
    for second in range(1, 50):
        scheduler.push(arrival(second, float(second), "interactive"))
        if scheduler.pop(float(second)).prompt_idx == 0:
            break
    assert second - 1 <= max_wait_s < second, "it went at the first chance behind max_wait_s"


@pytest.mark.task("2.8.1")
def test_urgency_sorts_all_prompts_as_they_would_be_popped(llm):
    rng = random.Random(1)
    for _ in range(50):
        times = sorted(rng.choice((0.0, 1.0, 2.0, 7.5)) for _ in range(12))
        waiting = [arrival(i, t, rng.choice(("interactive", "batch"))) for i, t in enumerate(times)]
        now_s = rng.choice((7.5, 9.0, 30.0))
        by_key = sorted(waiting, key=lambda each: llm.urgency(each, now_s, 6.0))
        got = popped(filled(llm, *waiting, max_wait_s=6.0), now_s)
        assert got == [each.prompt_idx for each in by_key], f"pop at {now_s} s and urgency order {waiting}"
        overdue = [llm.is_overdue(each, now_s, 6.0) for each in by_key]
        assert overdue == sorted(overdue, reverse=True), "overdue prompts are the first of all"


@pytest.mark.task("2.8.1")
@pytest.mark.parametrize(
    ("priority_class", "now_s", "want"),
    [("batch", 11.0, False), ("batch", 11.1, True), ("interactive", 99.0, False)],
)
def test_only_batch_prompts_become_overdue(llm, priority_class, now_s, want):
    is_overdue = llm.is_overdue(arrival(0, 1.0, priority_class), now_s, 10.0)
    assert is_overdue is want, f"{priority_class}, {now_s - 1:.4g} s of at most 10 s: is it overdue?"
    assert llm.is_overdue(arrival(0, 1.0, priority_class), now_s) is want, "10 s is the default"


# Rows that are reserved


@pytest.mark.task("2.8.2")
@pytest.mark.parametrize("reserved", [0, 1, 4, 9])
def test_an_interactive_prompt_takes_any_free_row(llm, reserved):
    got = [llm.may_start("interactive", taken, 5, reserved_rows=reserved) for taken in range(6)]
    assert got == [True] * 5 + [False], f"may it start with 0 to 5 of 5 rows taken, {reserved} reserved?"


@pytest.mark.task("2.8.2")
@pytest.mark.parametrize(("reserved", "most"), [(0, 5), (1, 4), (3, 2), (4, 1), (5, 1), (99, 1)])
def test_a_batch_prompt_leaves_the_reserved_rows_free(llm, reserved, most):
    # It takes a row itself: of 5 rows, 1 reserved, batch prompts fill 4.
    got = [llm.may_start("batch", taken, 5, reserved_rows=reserved) for taken in range(6)]
    what = f"may it start with 0 to 5 of 5 rows taken, {reserved} reserved?"
    assert got == [taken < most for taken in range(6)], what


@pytest.mark.task("2.8.2")
def test_an_overdue_prompt_ignores_the_reserved_rows(llm):
    got = [llm.may_start("batch", taken, 3, reserved_rows=2, is_overdue=True) for taken in range(4)]
    assert got == [True, True, True, False], "but it still needs a row"


@pytest.mark.task("2.8.2")
def test_nothing_is_reserved_unless_asked_for(llm):
    got = [llm.may_start("batch", taken, 2) for taken in range(3)]
    assert got == [True, True, False], "may it start with 0, 1 and 2 of 2 rows taken, none reserved?"


# The loop with a prefill policy. When a prompt is computed changes, its answer does not


def chunks(events):
    """(request, offset behind the chunk) of every chunk, in order."""
    return [(e.prompt_idx, e.num_computed_tokens) for e in events if isinstance(e, PrefillEvent)]


def began(events):
    """The requests in the order of their first chunks."""
    return list(dict.fromkeys(idx for idx, _ in chunks(events)))


def batch(prompt, max_tokens, **settings):
    return limited(prompt, max_tokens, priority_class="batch", **settings)


@pytest.fixture
def served(llm, monkeypatch):
    """served(prompts, policy): the events, the completions and the model of a run.

    Its chunks take 2 s, its decode steps 0.25 s, and the answers are those of each prompt alone.
    """

    def serve(prompts, policy, **settings):
        events, clock = [], FakeClock()
        clock.take_over(monkeypatch, llm.BatchGenerator)
        model = timed_model(clock)
        settings = {"prefill_step": 8, "batch_size": 4, "clock": clock, **settings}
        done = run_all(llm, prompts, model, prefill_policy=policy, on_event=events.append, **settings)
        for completion, prompt in zip(done, prompts, strict=True):
            want = model.answer_to(prompt.content.encode(), prompt.sampling.max_tokens)
            assert list(completion.token_ids) == want, f"the answer to prompt {completion.prompt_idx}"
        assert live_requests(model) == 0, "all cache memory is given back"
        return events, done, model

    return serve


def test_interactive_prompts_begin_before_batch_prompts(llm, served):
    prompts = [batch("aaa", 2), batch("bbbb", 2), limited("cc", 2), limited("d", 2)]
    events, _, _ = served(prompts, llm.PrefillScheduler())
    assert began(events) == [2, 3, 0, 1]


@pytest.mark.parametrize(("max_wait_s", "place"), [(1.0, 1), (5.0, 3), (11.0, 6), (1000.0, 12)])
def test_a_batch_prompt_does_not_starve(llm, served, max_wait_s, place):
    # An interactive prompt of one chunk and one token, 2 s each, arrives every 2 s; the batch prompt at 0.
    prompts = [limited(text_of(4, i), 1, arrival_s=2.0 * i) for i in range(12)] + [batch("zzz", 1)]
    events, _, _ = served(prompts, llm.PrefillScheduler(max_wait_s=max_wait_s))
    assert began(events).index(12) == place


def test_a_long_prefill_gives_way_and_goes_on_at_its_offset(llm, served):
    prompts = [batch(text_of(40), 2), limited("cc", 2, arrival_s=3.0), limited("ddd", 2, arrival_s=3.5)]
    policy = llm.PrefillScheduler(long_tokens=8)
    events, done, model = served(prompts, policy)
    # Both arrive during the second chunk. Between two pauses the long prompt computes a chunk.
    assert chunks(events) == [(0, 8), (0, 16), (1, 2), (0, 24), (2, 3), (0, 32), (0, 40)]
    assert policy.paused.num_pauses == 2 and policy.paused.peak_bytes > 0
    starts = [call.offset for call in model.prefill_calls() if call.length == 8]
    assert starts == [0, 8, 16, 24, 32], "no token is computed twice"
    assert done[1].timing.ttft_s == 2 * CHUNK_S - 3.0 + CHUNK_S


def test_no_prefill_gives_way_to_a_batch_prompt(llm, served):
    prompts = [limited(text_of(40), 2), batch("cc", 2, arrival_s=1.0)]
    policy = llm.PrefillScheduler(long_tokens=8, max_wait_s=3.0)
    events, _, _ = served(prompts, policy)
    assert began(events) == [0, 1] and policy.paused.num_pauses == 0


def test_batch_prompts_leave_rows_free(llm, served):
    # Three rows, one reserved: two batch answers run; the third begins when one of them has ended.
    prompts = [*(batch(text_of(3, i), 20) for i in range(3)), limited("hello", 4, arrival_s=6.0)]
    events, done, _ = served(prompts, llm.PrefillScheduler(reserved_rows=1, max_wait_s=99), batch_size=3)
    assert began(events) == [0, 1, 3, 2]
    assert done[3].timing.ttft_s <= CHUNK_S + DECODE_S, "it found a row when it came"
    assert done[2].timing.token_s[0] > min(each.timing.token_s[-1] for each in done[:2])


def test_a_paused_batch_prompt_leaves_rows_free_too(llm, served):
    # Rows: 0 and, after its pause, 1 would leave none free for 3.
    prompts = [
        limited(text_of(3), 40),
        batch(text_of(40, 1), 2),
        limited(text_of(3, 2), 12, arrival_s=5.0),
        limited(text_of(3, 3), 2, arrival_s=7.0),
    ]
    policy = llm.PrefillScheduler(reserved_rows=1, long_tokens=8, max_wait_s=1000)
    events, _, _ = served(prompts, policy, batch_size=3)
    assert chunks(events)[:5] == [(0, 3), (1, 8), (1, 16), (2, 3), (3, 3)]
    tokens_of_two = [i for i, e in enumerate(events) if isinstance(e, TokenEvent) and e.prompt_idx == 2]
    goes_on = next(i for i, e in enumerate(events) if chunks([e]) == [(1, 24)])
    assert tokens_of_two[-1] < goes_on, "it goes on when two rows are free again"


def test_a_run_begins_without_the_prompts_of_the_one_before(llm):
    clock, policy = FakeClock(), llm.PrefillScheduler(long_tokens=0)
    policy.begin(2, clock)
    first = policy.select_prefill(Arrivals([limited("aa", 2), limited("bb", 2)], clock=clock), None, 0)
    policy.paused.add(computed(0, 8), first)
    assert (first.prompt_idx, policy.num_waiting) == (0, 2), "one is paused, the other has not begun"
    policy.begin(2, clock)
    assert (policy.num_waiting, len(policy.paused), policy.paused.num_pauses) == (0, 0, 0)
    arrivals = Arrivals([limited("cc", 2)], clock=clock)
    chosen = policy.select_prefill(arrivals, None, 0)
    assert chosen.prompt.content == "cc", "the prompt that waited in the run before is forgotten"
    assert policy.select_prefill(arrivals, None, 0) is None


@pytest.mark.parametrize(
    "setting",
    [{"reserved_rows": -1}, {"long_tokens": -1}, {"max_wait_s": float("nan")}, {"kv_limit_bytes": -1}],
)
def test_a_setting_below_0_is_refused(llm, setting):
    (name,) = setting
    with pytest.raises(UserError, match=name):
        llm.PrefillScheduler(**setting)


def test_memory_comes_back_when_a_run_breaks(llm):
    clock, seen = FakeClock(), []
    model = timed_model(clock)

    def fail_late(event):
        seen.append(event)
        if len(chunks(seen)) == 3:
            raise KeyboardInterrupt

    prompts = [batch(text_of(90), 3), *(limited(text_of(90, i), 3, arrival_s=1.0) for i in (1, 2))]
    policy = llm.PrefillScheduler(long_tokens=8)
    settings = {"clock": clock, "prefill_step": 8, "prefill_policy": policy, "on_event": fail_late}
    with pytest.raises(KeyboardInterrupt):
        run_all(llm, prompts, model, **settings)
    assert policy.paused.num_pauses == 2, "two prompts were paused, the third was being computed"
    assert live_requests(model) == 0


@pytest.mark.parametrize("fails_at", [None, 10, 30])
@pytest.mark.parametrize("seed", range(12))
def test_any_run_with_any_policy(llm, seed, fails_at):
    rng = random.Random(seed)
    policy = llm.PrefillScheduler(
        max_wait_s=rng.choice((0.0, 10.0, 1000.0)),
        reserved_rows=rng.randrange(4),
        long_tokens=rng.choice((None, 0, 5, 30)),
        max_pauses=rng.choice((1, 3, 99)),
        kv_limit_bytes=rng.choice((None, 0, 400)),
    )
    AnyBatch(seed, policy).run(run_all, llm, ahead=rng.random() < 0.5, fails_at=fails_at)
    assert policy.num_waiting == 0 or fails_at
