"""Day 3.5: how long the least urgent sequence waits, to the step."""

import pytest

pytestmark = pytest.mark.task("3.5.3")


def add(llm, queue, name, priority, priority_class="interactive"):
    sequence = llm.TokenSequence(name, [1], priority, priority_class=priority_class)
    queue.add(sequence)
    return sequence


def wait(queue, num_steps):
    for _ in range(num_steps):
        queue.next_step()


def names(queue):
    return [sequence.request_id for sequence in queue.waiting]


def test_a_sequence_becomes_the_most_urgent_after_max_waiting_steps(llm):
    queue = llm.RequestQueue("priority")
    add(llm, queue, "patient", 9)
    wait(queue, 1)
    add(llm, queue, "urgent", 0)
    wait(queue, llm.MAX_WAITING_STEPS - 1)
    assert names(queue) == ["urgent", "patient"], "it has waited MAX_WAITING_STEPS steps, not more"
    wait(queue, 1)
    assert names(queue) == ["patient", "urgent"]
    wait(queue, 1)
    assert names(queue) == ["patient", "urgent"], "of two that waited long enough the first that was added"


def test_aging_stays_within_the_class(llm):
    queue = llm.RequestQueue("priority")
    add(llm, queue, "batch", 0, "batch")
    wait(queue, llm.MAX_WAITING_STEPS + 1)
    add(llm, queue, "newer batch", -5, "batch")
    add(llm, queue, "interactive", 9)
    assert names(queue) == ["interactive", "batch", "newer batch"]


def test_waiting_is_counted_anew_after_a_preemption(llm):
    queue = llm.RequestQueue("priority")
    add(llm, queue, "a", 9)
    wait(queue, llm.MAX_WAITING_STEPS)
    queue.admit()
    wait(queue, 5)
    queue.preempt()
    add(llm, queue, "urgent", 0)
    wait(queue, llm.MAX_WAITING_STEPS)
    assert names(queue) == ["urgent", "a"]
    wait(queue, 1)
    assert names(queue)[0] == "a"
