"""Day 2.8: the order of prompts that wait, and the rows that batch prompts leave free."""

import random

import pytest
from tests.helpers.prefills import arrival


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
def test_interactive_prompts_go_before_batch_prompts_each_first_come_first(llm):
    batch = [arrival(i, float(i)) for i in (0, 1, 3)]
    chats = [arrival(i, float(i), "interactive") for i in (2, 4, 5)]
    scheduler = filled(llm, *batch, *chats, max_wait_s=100)
    assert len(scheduler) == 6
    assert popped(scheduler, 6.0) == [2, 4, 5, 0, 1, 3]
    assert len(scheduler) == 0


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
def test_prompts_age_while_they_wait(llm):
    scheduler = filled(llm, arrival(0, 0.0), arrival(1, 0.0, "interactive"), max_wait_s=5)
    got = [scheduler.peek(now_s).prompt_idx for now_s in (0.0, 4.0, 5.1, 4.0)]
    assert got == [1, 1, 0, 1], "first at 0, 4, 5.1 and 4 s: 0 is a batch prompt, overdue after 5 s"


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
