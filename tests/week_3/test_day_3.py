"""Day 3.3: the prefix cache. Equal beginnings are computed once."""

import hashlib
import itertools
import random
import struct
import sys

import pytest

SIZE = 4


def prompt(*blocks, rest=()):
    """A prompt of full blocks, each of four equal tokens, and what follows them."""
    return [token for token in blocks for _ in range(SIZE)] + list(rest)


def computed(cache, pool, token_ids):
    """The blocks of a request that computed a whole prompt by itself, all full ones stored."""
    blocks = pool.allocate(-(-len(token_ids) // SIZE))
    parent = None
    for i in range(len(token_ids) // SIZE):
        parent = cache.key(parent, token_ids[i * SIZE : (i + 1) * SIZE])
        cache.insert(parent, blocks[i])
    return blocks


def found(cache, token_ids):
    """The blocks of the longest cached prefix of a prompt."""
    blocks = [cache.find(key) for key in cache.keys(token_ids)]
    return [block[1] for block in itertools.takewhile(bool, blocks)]


@pytest.fixture
def pool(llm):
    return llm.BlockPool(12, SIZE)


@pytest.fixture
def cache(llm, pool):
    return llm.PrefixCache(pool, "toy f32")


# Blocks by their prefix


@pytest.mark.task("3.3.1")
def test_a_hash_is_that_of_parent_and_tokens(llm):
    want = hashlib.sha256(b"parent" + struct.pack("=3q", 1, 2, 300)).digest()
    assert llm.hash_block(b"parent", [1, 2, 300]) == want
    assert llm.hash_block(b"other", [1, 2, 300]) != want
    assert llm.hash_block(b"parent", [1, 300, 2]) != want


@pytest.mark.task("3.3.1")
def test_keys_are_equal_when_the_prefixes_are(llm, cache):
    one, same = cache.keys(prompt(1, 2, 3, rest=[9])), cache.keys(prompt(1, 2, 3, rest=[7]))
    other = cache.keys(prompt(5, 2, 3, rest=[9]))
    assert one == same and len({*one, *same}) == 3
    assert all(a != b for a, b in zip(one, other, strict=True)), "equal tokens after different ones"
    assert one[0] != "a key"
    cut = llm.BlockKey(one[2].digest, one[2].token_ids, None)
    assert cut != one[2]


@pytest.mark.task("3.3.1")
def test_equal_digests_are_not_enough(llm):
    parents = [llm.BlockKey(b"", (n,) * SIZE, None) for n in (1, 2)]
    children = [llm.BlockKey(b"", (7,) * SIZE, parent) for parent in parents]
    assert parents[0] != parents[1], "the digests collide, the tokens do not"
    assert children[0] != children[1], "nor do the tokens of their parents"
    assert children[0] == llm.BlockKey(b"", (7,) * SIZE, llm.BlockKey(b"", (1,) * SIZE, None))


@pytest.mark.task("3.3.1")
def test_keys_of_long_prompts_compare(llm, pool, cache):
    # One after the other, not by a call in a call for every block.
    assert cache.keys([1] * 20_001)[-1] == cache.keys([1] * 20_001)[-1]


@pytest.mark.task("3.3.1")
@pytest.mark.parametrize(
    ("length", "want"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (12, 2), (13, 3), (16, 3)]
)
def test_full_blocks_and_never_the_whole_prompt(cache, pool, length, want):
    computed(cache, pool, [7] * 20)
    assert len(cache.keys([7] * length)) == want, "floor((P - 1) / block_size)"
    assert len(found(cache, [7] * length)) == want


@pytest.mark.task("3.3.1")
def test_lookup_ends_at_the_first_difference(cache, pool):
    blocks = computed(cache, pool, prompt(1, 2, 3))
    assert found(cache, prompt(1, 2, 3, rest=[9])) == blocks
    assert found(cache, prompt(1, 2, 4, 9)) == blocks[:2]
    assert found(cache, prompt(1, rest=[2, 2, 2, 0, 0])) == blocks[:1]
    assert found(cache, prompt(9, 2, 3, 9)) == [], "blocks 2 and 3 follow another beginning"
    assert found(cache, prompt(2, 3, 9)) == []
    assert [pool.ref_count(block) for block in blocks] == [1, 1, 1], "looking holds nothing"


@pytest.mark.task("3.3.1")
def test_caches_of_different_models_differ(llm, pool):
    keys = [llm.PrefixCache(pool, root).keys(prompt(1, rest=[2]))[0] for root in ("f32", "bf16", "f32")]
    assert keys[0].digest == keys[2].digest != keys[1].digest


@pytest.mark.task("3.3.1")
def test_only_full_blocks_have_keys(cache):
    for tokens in ([1] * 3, [1] * 5, []):
        with pytest.raises(ValueError):
            cache.key(None, tokens)


@pytest.mark.task("3.3.1")
def test_the_first_block_with_some_tokens_stays_the_one(cache, pool):
    first, second = computed(cache, pool, prompt(1, 2)), computed(cache, pool, prompt(1, 2))
    assert found(cache, prompt(1, 2, 3)) == first
    pool.free(second)
    with pytest.raises(ValueError):
        pool.share(second[:1])  # it can be found by nothing, so it is not kept


@pytest.mark.task("3.3.1")
def test_cached_until_evicted_from_the_end(cache, pool):
    blocks = computed(cache, pool, prompt(1, 2, 3))
    pool.free(blocks)
    assert pool.num_free == 12 and found(cache, prompt(1, 2, 3, 4)) == blocks
    pool.allocate(10)
    assert found(cache, prompt(1, 2, 3, 4)) == blocks[:2], "the last block of the chain went first"
    pool.allocate(2)
    assert found(cache, prompt(1, 2, 3, 4)) == []


@pytest.mark.task("3.3.1")
def test_a_block_without_its_parent_waits_for_it(cache, pool):
    parent, child = cache.keys(prompt(1, 2, rest=[0]))
    held = pool.allocate(2)
    cache.insert(child, held[1])
    assert found(cache, prompt(1, 2, 3)) == []
    cache.insert(cache.key(None, [1] * SIZE), held[0])
    assert found(cache, prompt(1, 2, 3)) == held, "equal keys, though not the same objects"
    assert parent in {cache.find(parent)[0]}


# Sharing between live requests


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
    assert (cache.num_query_blocks, cache.num_query_tokens) == (3, 16), "the last of 4 blocks is never found"
    assert (cache.num_hit_blocks, cache.num_hit_tokens) == (2, 8)


@pytest.mark.task("3.3.2")
def test_a_request_that_comes_again_is_not_counted_again(llm, cache, pool):
    blocks = computed(cache, pool, prompt(1, 2))
    assert llm.PrefixMatch(cache, prompt(1, 2, 3), is_counted=False).acquire() == blocks
    assert (cache.num_query_blocks, cache.num_hit_blocks) == (0, 0)


@pytest.mark.task("3.3.2")
def test_a_follower_waits_for_reserved_blocks_and_takes_them_one_by_one(llm, cache, pool):
    leader, follower = llm.PrefixMatch(cache, prompt(1, 2, 3)), llm.PrefixMatch(cache, prompt(1, 2, 8, 9))
    assert not leader.is_waiting
    leader.reserve()
    assert not leader.is_waiting, "nobody waits for itself"
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


@pytest.mark.task("3.3.2")
def test_when_the_leader_ends_a_follower_computes(llm, cache, pool):
    leader, second, third = (llm.PrefixMatch(cache, prompt(1, 2, 3, rest=[n])) for n in range(3))
    leader.reserve()
    (block,) = pool.allocate(1)
    leader.register([1] * SIZE, block)
    leader.release()
    assert second.acquire() == [block] and not second.is_waiting
    second.reserve()
    assert third.acquire() == [block] and third.is_waiting, "now it waits for the second"
    leader.release()
    third.release()
    assert third.is_waiting, "a request takes away no reservation of another"
    second.release()
    assert not third.is_waiting and cache.reservations == {}


@pytest.mark.task("3.3.2")
def test_a_reservation_made_in_part_is_completed_later(llm, cache, pool):
    leader, other = llm.PrefixMatch(cache, prompt(1, 2, 3, 4)), llm.PrefixMatch(cache, prompt(1, 5, rest=[0]))
    leader.reserve()
    other.reserve()
    assert len(cache.reservations) == 4, "three blocks of the leader and the one that is only the other's"
    assert other.is_waiting and not leader.is_waiting, "a later reservation takes nothing over"
    leader.release()
    assert not other.is_waiting
    other.reserve()
    assert len(cache.reservations) == 2


@pytest.mark.task("3.3.2")
def test_a_block_that_was_computed_twice_is_registered_once(llm, cache, pool):
    matches = [llm.PrefixMatch(cache, prompt(1, 2, rest=[0])) for _ in range(2)]
    held = pool.allocate(4)
    for match, blocks in zip(matches, (held[:2], held[2:]), strict=True):
        match.register([1] * SIZE, blocks[0])
        match.register([2] * SIZE, blocks[1])
        assert match.is_past_sharing and not match.is_waiting and match.num_blocks == 2
    assert found(cache, prompt(1, 2, 3)) == held[:2]
    pool.check([held[:2], held[2:]])


@pytest.mark.task("3.3.2")
def test_reservations_of_batch_class_hold_among_equals_only(llm, cache):
    first, second = (llm.PrefixMatch(cache, prompt(1, 2, rest=[n]), rank=1) for n in range(2))
    first.reserve()
    other, later = (llm.PrefixMatch(cache, prompt(1, 2, rest=[n])) for n in (2, 3))
    assert (second.is_waiting, other.is_waiting) == (True, False), "others do not wait for batch class"
    other.reserve()
    assert first.is_waiting and second.is_waiting and later.is_waiting, "the other one computes it now"
    other.release()
    assert not first.is_waiting and not later.is_waiting


@pytest.mark.task("3.3.2")
def test_a_reservation_ends_when_another_request_was_faster(llm, cache, pool):
    slow, fast = (llm.PrefixMatch(cache, prompt(1, 2, rest=[0])) for _ in range(2))
    slow.reserve()
    (block,) = pool.allocate(1)
    fast.register([1] * SIZE, block)
    assert slow.acquire() == [block]
    slow.release()
    assert cache.reservations == {}, "what is left here would be waited for forever"


# What an interrupt, a failed step or a long workload leaves


class Interrupted(KeyboardInterrupt):
    pass


def is_interrupted(num_lines, call, *args):
    """Call, but raise as Ctrl-C would before line number `num_lines` that the call comes to."""
    count = 0

    def on_line(frame, event, arg):
        nonlocal count
        count += event == "line"
        if count > num_lines:
            raise Interrupted
        return on_line

    before = sys.gettrace()
    sys.settrace(on_line)
    try:
        call(*args)
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.task("3.3.1")
def test_an_interrupted_insert_is_never_found_in_a_block_of_another(llm):
    for num_lines in range(100):
        pool = llm.BlockPool(3, SIZE)
        cache = llm.PrefixCache(pool)
        key = cache.key(None, [1] * SIZE)
        first, second = pool.allocate(2)
        was_interrupted = is_interrupted(num_lines, cache.insert, key, first)
        pool.free([first])
        pool.allocate(2)
        assert found(cache, prompt(1, 2)) == [], f"block {first} was given away: interrupt at {num_lines}"
        cache.insert(key, second)
        assert found(cache, prompt(1, 2)) == [second]
        if not was_interrupted:
            return
    pytest.fail("insert does not end")


@pytest.mark.task("3.3.1")
def test_a_cleared_cache_finds_nothing_and_starts_again(llm, cache, pool):
    held, idle = computed(cache, pool, prompt(1, 2)), computed(cache, pool, prompt(3, 4))
    pool.free(idle)
    leader = llm.PrefixMatch(cache, prompt(5, 6))
    leader.reserve()
    counted = (cache.num_query_blocks, cache.num_hit_blocks)
    cache.clear()
    assert found(cache, prompt(1, 2, 9)) == found(cache, prompt(3, 4, 9)) == []
    assert cache.reservations == {} and (cache.num_query_blocks, cache.num_hit_blocks) == counted
    again = computed(cache, pool, prompt(1, 2))
    pool.free(held)
    assert len(pool.allocate(pool.num_free)) == 10, "blocks of before the clear can be evicted"
    assert found(cache, prompt(1, 2, 9)) == again, "evicting them forgets nothing that came later"


@pytest.mark.task("3.3.1")
def test_a_cache_starts_again_on_a_reset_pool(llm, cache, pool):
    computed(cache, pool, prompt(1, 2))
    pool.reset()
    cache.clear()
    pool.check([])
    assert pool.allocate(12) == list(range(12))
    assert found(cache, prompt(1, 2, 9)) == []


@pytest.mark.task("3.3.2")
def test_answers_do_not_push_shared_prompts_out(llm):
    """Four prompts of 4 blocks come again and again, and each answer takes 6 blocks that nobody can share."""
    rng, pool = random.Random(4), llm.BlockPool(24, SIZE)
    cache = llm.PrefixCache(pool)
    for _ in range(60):
        tokens = prompt(*[rng.randrange(4)] * 4, rest=[9])
        match = llm.PrefixMatch(cache, tokens)
        blocks = match.acquire()
        num_found = len(blocks)
        blocks += pool.allocate(10 - num_found)
        for i in range(num_found, 4):
            match.register(tokens[i * SIZE : (i + 1) * SIZE], blocks[i])
        match.release()
        pool.free(blocks)
    assert cache.num_query_blocks == 240
    assert cache.num_hit_blocks == 240 - 16, "every block of the four prompts is computed once"
