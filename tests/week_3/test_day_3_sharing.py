"""Day 3.3: blocks that live requests share."""

import sys

import pytest
from tests.helpers.prefixes import SIZE, computed, found, prompt


@pytest.fixture
def pool(llm):
    return llm.BlockPool(12, SIZE)


@pytest.fixture
def cache(llm, pool):
    return llm.PrefixCache(pool, "toy f32")


@pytest.mark.task("3.3.2")
def test_what_is_taken_is_held_and_counted_once(llm, cache, pool):
    blocks = computed(cache, pool, prompt(1, 2))
    match = llm.PrefixMatch(cache, prompt(1, 2, 3, 4))
    for _ in range(3):
        assert match.match() == blocks, "looking again changes nothing"
    assert (cache.num_query_tokens, cache.num_hit_tokens, pool.ref_count(blocks[0])) == (0, 0, 1)
    assert match.acquire() == blocks
    assert [pool.ref_count(block) for block in blocks] == [2, 2]
    assert match.acquire() == [] and match.num_blocks == 2
    assert cache.num_query_blocks == 3, "the last of 4 blocks is never found"
    assert cache.num_query_tokens == 16, "all tokens of the prompt count, also those that cannot be found"
    assert (cache.num_hit_blocks, cache.num_hit_tokens) == (2, 8)


@pytest.mark.task("3.3.2")
def test_a_match_ends_at_the_first_block_that_is_not_cached(llm, cache, pool):
    # Another request has computed block 1 a second time, and the cached one was evicted: 0 and 2 are left.
    keys, blocks = cache.keys(prompt(1, 2, 3, 4)), pool.allocate(2)
    cache.insert(keys[0], blocks[0])
    cache.insert(keys[2], blocks[1])
    match = llm.PrefixMatch(cache, prompt(1, 2, 3, 4))
    assert match.match() == blocks[:1], "the blocks up to the gap: what follows it has to wait"
    assert match.acquire() == blocks[:1] and match.num_blocks == 1


@pytest.mark.task("3.3.2")
def test_only_requests_of_the_same_salt_share(llm, cache, pool):
    def match(salt):
        return llm.PrefixMatch(cache, prompt(1, 2), salt=salt)

    (block,) = pool.allocate(1)
    match("one").register([1] * SIZE, block)
    assert [match(salt).match() for salt in ("one", "two", "")] == [[block], [], []]
    short = llm.PrefixMatch(cache, [1, 1], salt="two")
    (other,) = pool.allocate(1)
    short.register([1] * SIZE, other)  # its first full block ends in its answer
    assert [match(salt).match() for salt in ("one", "two", "")] == [[block], [other], []]


@pytest.mark.task("3.3.2")
def test_a_follower_waits_for_reserved_blocks_and_takes_them_one_by_one(llm, cache, pool):
    leader, follower = llm.PrefixMatch(cache, prompt(1, 2, 3)), llm.PrefixMatch(cache, prompt(1, 2, 8, 9))
    assert not leader.is_waiting
    leader.reserve()
    assert not leader.is_waiting, "no request waits for itself"
    assert follower.is_waiting and follower.acquire() == []
    held = pool.allocate(3)
    leader.register([1] * SIZE, held[0])
    assert follower.is_waiting, "for the second block: the first is there"
    assert follower.acquire() == held[:1] and follower.is_waiting
    leader.register([2] * SIZE, held[1])
    assert follower.acquire() == held[1:2] and not follower.is_waiting, "the rest is its own"
    follower.reserve()
    leader.register([3] * SIZE, held[2])
    assert found(cache, prompt(1, 2, 3, 4)) == held, "also blocks after those that were reserved"
    assert not follower.is_past_sharing and follower.num_blocks == 2


def num_lines(call):
    """How many lines of Python `call` comes to."""
    count = 0

    def on_line(frame, event, arg):
        nonlocal count
        count += event == "line"
        return on_line

    before = sys.gettrace()
    sys.settrace(on_line)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.task("3.3.2")
def test_looking_up_a_prompt_takes_as_long_as_it_has_blocks(llm):
    counts = []
    for num_blocks in (50, 200):
        pool = llm.BlockPool(num_blocks + 1, SIZE)
        cache = llm.PrefixCache(pool)
        tokens = prompt(*range(num_blocks), rest=[0])
        computed(cache, pool, tokens)
        match = llm.PrefixMatch(cache, tokens)
        counts.append(num_lines(match.match))
        assert match.match() == list(range(num_blocks))
    is_linear = counts[1] < 6 * counts[0]  # no numbers of lines in the message: they are each answer's own
    assert is_linear, (
        "match of 200 blocks takes more than 6 times as many lines of Python as match of 50 blocks: "
        "each key is compared back to the first block unless it continues the stored key"
    )
