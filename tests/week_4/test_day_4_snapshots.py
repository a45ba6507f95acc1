"""Day 4.4: which snapshots there are, and where a prefix ends."""

from typing import Any

import pytest
from tests.helpers.prefixes import SIZE, prompt


@pytest.mark.task("4.4.2")
def test_the_least_recently_used_snapshot_is_replaced(llm: Any) -> None:
    snapshots = llm.StateSnapshots(3, 16)
    for key in "abc":
        snapshots.add(key, snapshots.take(), False)
    number = snapshots.hold("a")
    snapshots.let_go("a")
    assert snapshots.take() not in (-1, number) and not snapshots.has("b"), "b is older than a now"
    snapshots.hold("c")
    assert snapshots.take() == number and not snapshots.has("a")
    assert snapshots.take() == -1, "c is held, and the other two are taken"
    assert (snapshots.num_evicted, snapshots.num_used, len(snapshots)) == (2, 2, 1)
    snapshots.hold("c")
    snapshots.let_go("c")
    assert snapshots.take() == -1, "two went on from c, and one of them is not done"


@pytest.mark.task("4.4.2")
def test_a_passing_snapshot_stays_once_it_was_used(llm: Any) -> None:
    snapshots = llm.StateSnapshots(3, 16)
    for key in "ab":
        snapshots.add(key, snapshots.take(), True)
    snapshots.hold("a")
    snapshots.let_go("a")
    for key in "ab":
        snapshots.drop_passing(key)
    assert (snapshots.has("a"), snapshots.has("b")) == (True, False)


@pytest.mark.task("4.4.2")
def test_what_is_asked_for_is_wanted_until_it_is_there_or_nobody_asks(llm: Any) -> None:
    snapshots = llm.StateSnapshots(2, 16)
    for owner, key in ((1, "a"), (2, "a"), (2, "b"), (2, "b")):
        snapshots.ask(owner, key)
    assert snapshots.is_wanted("a") and snapshots.is_wanted("b") and not snapshots.is_wanted("c")
    snapshots.withdraw(2)
    snapshots.withdraw(2)
    assert snapshots.is_wanted("a") and not snapshots.is_wanted("b")
    snapshots.add("a", snapshots.take(), False)
    assert not snapshots.is_wanted("a")


@pytest.mark.task("4.4.2")
def test_a_snapshot_that_is_there_already_stays(llm: Any) -> None:
    snapshots = llm.StateSnapshots(2, 16)
    first, second = snapshots.take(), snapshots.take()
    snapshots.add("a", first, True)
    snapshots.add("a", second, False)
    assert snapshots.take() == second, "the second number is free again"
    snapshots.drop_passing("a")
    assert snapshots.has("a"), "one of the two was no passing one"
    assert snapshots.num_added == 1


class Two:
    """A prefix cache with snapshots, and texts of numbered blocks."""

    def __init__(self, llm: Any, every: int = 99) -> None:
        self.llm, self.snapshots = llm, llm.StateSnapshots(9, every * SIZE)
        self.pool = llm.BlockPool(30, SIZE)
        self.cache = llm.PrefixCache(self.pool, snapshots=self.snapshots)

    def match(self, *blocks: int) -> Any:
        """Of a text of these blocks, and one token more."""
        return self.llm.PrefixMatch(self.cache, [*prompt(*blocks), 7])

    def compute(self, match: Any, count: int, tokens: list[int], *borders: int) -> None:
        """The next `count` blocks of a text, with snapshots after these numbers of blocks."""
        for _ in range(count):
            i = match.num_blocks
            match.register(tokens[i * SIZE : (i + 1) * SIZE], self.pool.allocate(1)[0])
            if i + 1 in borders:
                self.snapshots.add(match.last_key, self.snapshots.take(), False)


@pytest.mark.task("4.4.3")
def test_a_match_ends_at_the_last_snapshot(llm: Any) -> None:
    two = Two(llm)
    first = two.match(1, 2, 3, 4, 5)
    two.compute(first, 5, prompt(1, 2, 3, 4, 5), 2, 4)
    assert len(two.match(1, 2, 3, 4, 5, 6).match()) == 4
    assert len(two.match(1, 2, 3, 9).match()) == 2
    assert two.match(1, 8).match() == []
    second = two.match(1, 2, 3, 9)
    assert len(second.acquire()) == second.num_blocks == 2
    assert two.snapshots.has(second.last_key) and not second.is_waiting


@pytest.mark.task("4.4.3")
def test_who_shares_blocks_with_a_live_request_waits_for_the_junction(llm: Any) -> None:
    two = Two(llm)
    first, second = two.match(1, 2, 3, 4), two.match(1, 2, 3, 9)
    first.reserve()
    second.ask()
    assert second.is_waiting
    assert first.borders(0, 4 * SIZE) == [3 * SIZE, 4 * SIZE], "where the second goes on, and the end"
    two.compute(first, 2, prompt(1, 2, 3, 4))
    assert second.is_waiting, "the blocks so far are of no use without a snapshot"
    two.compute(first, 1, prompt(1, 2, 3, 4), 3)
    assert not second.is_waiting and len(second.match()) == 3


@pytest.mark.task("4.4.3")
def test_nobody_waits_for_a_request_that_has_left(llm: Any) -> None:
    two = Two(llm)
    first, second = two.match(1, 2, 3, 4), two.match(1, 2, 3, 9)
    first.reserve()
    second.ask()
    two.compute(first, 1, prompt(1, 2, 3, 4))
    first.release()
    assert not second.is_waiting
    second.ask()
    assert second.borders(0, 4 * SIZE) == [SIZE, 4 * SIZE], "the one block that is there, and the end"
    (asked, *_) = two.cache.keys([*prompt(1, 2, 3, 9), 7])
    assert two.snapshots.is_wanted(asked)
    second.release()
    assert not two.snapshots.is_wanted(asked)


@pytest.mark.task("4.4.3")
def test_cached_blocks_are_reserved_by_who_makes_their_snapshot(llm: Any) -> None:
    two = Two(llm)
    first = two.match(1, 2, 3)
    two.compute(first, 3, prompt(1, 2, 3), 3)
    second, third = two.match(1, 2, 8), two.match(1, 2, 9)
    for each in (second, third):
        each.ask()
    second.reserve()
    assert third.is_waiting and not second.is_waiting
    two.compute(second, 2, prompt(1, 2, 8), 2)
    assert not third.is_waiting and len(third.match()) == 2


@pytest.mark.task("4.4.3")
def test_borders_of_a_long_text(llm: Any) -> None:
    two = Two(llm, every=3)
    match = two.match(*range(8))
    assert match.borders(0, 5 * SIZE) == [3 * SIZE]
    assert match.borders(2 * SIZE + 1, 8 * SIZE + 1) == [3 * SIZE, 6 * SIZE, 8 * SIZE]
    assert match.borders(8 * SIZE, 8 * SIZE + 3) == []
    assert match.borders(8 * SIZE + 1, 11 * SIZE) == [9 * SIZE, 11 * SIZE], "behind the text: the newest"
    assert match.borders(5 * SIZE, 5 * SIZE) == []


@pytest.mark.task("4.4.3")
def test_without_states_a_prefix_ends_where_its_blocks_end(llm: Any) -> None:
    pool = llm.BlockPool(9, SIZE)
    cache = llm.PrefixCache(pool)
    match = llm.PrefixMatch(cache, prompt(1, 2, 3))
    match.register(prompt(1), pool.allocate(1)[0])
    again = llm.PrefixMatch(cache, prompt(1, 2, 3))
    again.ask()
    assert len(again.match()) == 1


@pytest.mark.task("4.4.3")
def test_a_snapshot_of_an_evicted_block_gives_back_its_number(llm: Any) -> None:
    two = Two(llm)
    first = two.match(1, 2, 3)
    two.compute(first, 3, prompt(1, 2, 3), 2, 3)
    blocks = two.match(1, 2, 3, 4).acquire()
    for _ in range(2):  # computed and attached
        two.pool.free(blocks)
    two.pool.allocate(two.pool.num_blocks - 2)
    assert len(two.snapshots) == 1 and two.match(1, 2, 3, 4).match() == blocks[:2]
    two.pool.allocate(1)
    assert len(two.snapshots) == 0 and two.match(1, 2, 3, 4).match() == []
