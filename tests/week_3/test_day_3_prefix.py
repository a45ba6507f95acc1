"""Day 3.3: the prefix cache. Equal beginnings are computed once."""

import hashlib
import struct
import sys

import pytest
from tests.helpers.prefixes import SIZE, computed, found, prompt

# The task of each test that names no other.
pytestmark = pytest.mark.task("3.3.1")


@pytest.fixture
def pool(llm):
    return llm.BlockPool(12, SIZE)


@pytest.fixture
def cache(llm, pool):
    return llm.PrefixCache(pool, "toy f32")


# Blocks by their prefix


def test_a_hash_is_that_of_parent_and_tokens(llm):
    want = hashlib.sha256(b"parent" + struct.pack("=3q", 1, 2, 300)).digest()
    assert llm.hash_block(b"parent", [1, 2, 300]) == want
    assert llm.hash_block(b"other", [1, 2, 300]) != want
    assert llm.hash_block(b"parent", [1, 300, 2]) != want


def test_keys_are_equal_when_the_prefixes_are(llm, cache):
    one, same = cache.keys(prompt(1, 2, 3, rest=[9])), cache.keys(prompt(1, 2, 3, rest=[7]))
    other = cache.keys(prompt(5, 2, 3, rest=[9]))
    assert one == same and len({*one, *same}) == 3
    assert all(a != b for a, b in zip(one, other, strict=True)), "equal tokens after different ones"
    assert one[0] != "a key"
    cut = llm.BlockKey(one[2].digest, one[2].token_ids, None)
    assert cut != one[2]


def test_equal_digests_are_not_enough(llm):
    parents = [llm.BlockKey(b"", (n,) * SIZE, None) for n in (1, 2)]
    children = [llm.BlockKey(b"", (7,) * SIZE, parent) for parent in parents]
    assert parents[0] != parents[1], "the digests collide, the tokens do not"
    assert children[0] != children[1], "nor do the tokens of their parents"
    assert children[0] == llm.BlockKey(b"", (7,) * SIZE, llm.BlockKey(b"", (1,) * SIZE, None))


def test_prompts_of_different_salts_share_no_block(cache, pool):
    root = hashlib.sha256(b"toy f32").digest()
    assert (
        cache.before("") is None
        and cache.before("b\u00e4").digest == hashlib.sha256(root + "b\u00e4".encode()).digest()
    )
    plain, one = cache.keys(prompt(1, 2, 3)), cache.keys(prompt(1, 2, 3), "one")
    assert one == cache.keys(prompt(1, 2, 9), "one") and len(one) == 2
    for other in (plain, cache.keys(prompt(1, 2, 3), "two")):
        assert not {*one} & {*other}
    for key, block in zip(one, pool.allocate(2), strict=True):
        cache.insert(key, block)
    assert found(cache, prompt(1, 2, 3)) == [], "what one client sent, another cannot find"


def test_keys_of_long_prompts_compare(llm, pool, cache):
    # One after the other, not by a call in a call for every block.
    assert cache.keys([1] * 20_001)[-1] == cache.keys([1] * 20_001)[-1]


@pytest.mark.parametrize(
    ("length", "want"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (12, 2), (13, 3), (16, 3)]
)
def test_full_blocks_and_never_the_whole_prompt(cache, pool, length, want):
    computed(cache, pool, [7] * 20)
    assert len(cache.keys([7] * length)) == want, "floor((P - 1) / block_size)"
    assert len(found(cache, [7] * length)) == want


def test_lookup_ends_at_the_first_difference(cache, pool):
    blocks = computed(cache, pool, prompt(1, 2, 3))
    assert found(cache, prompt(1, 2, 3, rest=[9])) == blocks
    assert found(cache, prompt(1, 2, 4, 9)) == blocks[:2]
    assert found(cache, prompt(1, rest=[2, 2, 2, 0, 0])) == blocks[:1]
    assert found(cache, prompt(9, 2, 3, 9)) == [], "blocks 2 and 3 follow another beginning"
    assert found(cache, prompt(2, 3, 9)) == []
    assert [pool.ref_count(block) for block in blocks] == [1, 1, 1], "looking holds nothing"


def test_caches_of_different_models_differ(llm, pool):
    keys = [llm.PrefixCache(pool, root).keys(prompt(1, rest=[2]))[0] for root in ("f32", "bf16", "f32")]
    digests = [key.digest.hex()[:8] for key in keys]
    assert digests[0] != digests[1], "two models (another `root`) must not find each other's blocks"
    assert digests[0] == digests[2], "the same root and tokens have the same digest"


def test_only_full_blocks_have_keys(cache):
    for tokens in ([1] * 3, [1] * 5, []):
        with pytest.raises(ValueError):
            cache.key(None, tokens)


def test_the_first_block_with_some_tokens_stays_the_one(cache, pool):
    first, second = computed(cache, pool, prompt(1, 2)), computed(cache, pool, prompt(1, 2))
    assert found(cache, prompt(1, 2, 3)) == first
    pool.free(second)
    with pytest.raises(ValueError):
        pool.share(second[:1])  # it can be found by nothing, so it is not kept


# What an interrupt, a failed step or a long workload leaves


class Interrupted(KeyboardInterrupt):
    pass


def is_interrupted(num_lines, call, *args):
    """Call, but raise as Ctrl-C would before line number `num_lines` that the call comes to."""
    count, package = 0, call.__module__.partition(".")[0]

    def on_line(frame, event, arg):
        nonlocal count
        if frame.f_globals["__name__"].partition(".")[0] != package:
            return None  # Python's own: an error in the callback of a weak reference reaches no caller
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


def test_a_cleared_cache_finds_nothing_and_starts_again(llm, cache, pool):
    held, idle = computed(cache, pool, prompt(1, 2)), computed(cache, pool, prompt(3, 4))
    pool.free(idle)
    cache.reservations[cache.keys(prompt(5, 6, rest=[9]))[0]] = object()
    cache.num_query_blocks, cache.num_hit_blocks = counted = (2, 1)
    cache.clear()
    assert found(cache, prompt(1, 2, 9)) == found(cache, prompt(3, 4, 9)) == []
    assert cache.reservations == {} and (cache.num_query_blocks, cache.num_hit_blocks) == counted
    again = computed(cache, pool, prompt(1, 2))
    pool.free(held)
    assert len(pool.allocate(pool.num_free)) == 10, "blocks of before the clear can be evicted"
    assert found(cache, prompt(1, 2, 9)) == again, "evicting them forgets nothing that came later"


# Blocks that live requests share


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
