"""Day 3.3: the prefix cache. Equal beginnings are computed once."""

import hashlib
import struct
import sys

import pytest
from tests.helpers.prefixes import SIZE, computed, found, prompt


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
    digests = [key.digest.hex()[:8] for key in keys]
    assert digests[0] != digests[1], "two models (another `root`) must not find each other's blocks"
    assert digests[0] == digests[2], "the same root and tokens have the same digest"


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
    cache.reservations[cache.keys(prompt(5, 6, rest=[9]))[0]] = object()
    cache.num_query_blocks, cache.num_hit_blocks = counted = (2, 1)
    cache.clear()
    assert found(cache, prompt(1, 2, 9)) == found(cache, prompt(3, 4, 9)) == []
    assert cache.reservations == {} and (cache.num_query_blocks, cache.num_hit_blocks) == counted
    again = computed(cache, pool, prompt(1, 2))
    pool.free(held)
    assert len(pool.allocate(pool.num_free)) == 10, "blocks of before the clear can be evicted"
    assert found(cache, prompt(1, 2, 9)) == again, "evicting them forgets nothing that came later"
