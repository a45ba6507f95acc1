"""Day 3.4: the request queue, in the order of a key."""

import pytest
from tests.helpers.scheduling import POLICIES


@pytest.mark.task("3.4.4")
@pytest.mark.parametrize("policy", POLICIES)
def test_batch_class_stands_behind_all_others(llm, policy):
    def key(is_batch, priority, num_added, is_aged=False):
        request = llm.TokenSequence("r", [1], priority, 0.0, "batch" if is_batch else "interactive")
        return llm.order_key(policy, request, num_added, is_aged)

    assert key(False, 9, 9) < key(True, 0, 0)
    assert key(False, 9, 9) < key(True, 0, 0, is_aged=True), "however long it waited"
    assert key(True, 0, 1) < key(True, 0, 2) and key(True, 0, 2, is_aged=True) < key(True, 0, 1)


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
def test_the_order_of_priorities(llm):
    def key(policy, priority, arrival_s, num_added, is_aged=False):
        request = llm.TokenSequence("r", [1], priority=priority, arrival_s=arrival_s)
        return llm.order_key(policy, request, num_added, is_aged)

    assert key("priority", 3, 2.0, 7) == (0, 1, 3, 2.0, 7), "class, not aged, priority, arrival, added"
    assert key("fcfs", 3, 2.0, 7) == (0, 1, 0, 0, 7) and key("priority", 3, 2.0, 7, True) == (0, 0, 0, 0, 7)
    assert key("priority", 0, 9.0, 9) < key("priority", 1, 1.0, 1), "the smaller priority first"
    assert key("priority", 1, 1.0, 1) < key("priority", 1, 2.0, 0), (
        "of equal priorities the first arrival first"
    )
    assert key("priority", 1, 1.0, 1) < key("priority", 1, 1.0, 2), "of equal arrivals the one added first"
    assert key("priority", 5, 9.0, 9, True) < key("priority", -5, 0.0, 0)
    assert key("priority", 5, 9.0, 3, True) < key("priority", 0, 1.0, 4, True)
    for policy in ("fcfs", "fair"):
        assert key(policy, 9, 9.0, 1) < key(policy, 0, 0.0, 2)


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
