"""Day 3.1: the paged KV cache, first part: the pool that says whose block is whose."""

import random
from collections import Counter

import pytest

from tiny_llm_lab.types import UserError


@pytest.mark.task("3.1.1")
def test_a_new_pool_gives_its_blocks_in_order(llm):
    pool = llm.BlockPool(4, 16)
    assert (pool.num_blocks, pool.block_size, pool.num_free) == (4, 16, 4)
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.num_free == 1
    assert [pool.ref_count(block) for block in range(4)] == [1, 1, 1, 0]
    pool.check([[0, 1], [2]])


@pytest.mark.task("3.1.1")
def test_all_or_none(llm):
    pool = llm.BlockPool(4)
    pool.allocate(2)
    with pytest.raises(llm.OutOfBlocksError):
        pool.allocate(3)
    assert pool.num_free == 2, "a failed allocation takes nothing"
    assert pool.allocate(0) == []
    assert pool.allocate(2) == [2, 3]
    with pytest.raises(ValueError):
        pool.allocate(-1)


@pytest.mark.task("3.1.1")
@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (-1, 16), (4, 0)])
def test_a_pool_of_nothing_is_refused(llm, num_blocks, block_size):
    with pytest.raises(UserError):
        llm.BlockPool(num_blocks, block_size)


def kept(pool, count):
    """Blocks that are cached, held by one."""
    blocks = pool.allocate(count)
    for block in blocks:
        pool.mark_cached(block)
    return blocks


@pytest.mark.task("3.1.1")
def test_of_cached_blocks_the_one_that_is_free_longest_comes_first(llm):
    pool = llm.BlockPool(4)
    kept(pool, 3)
    pool.free([1])
    pool.free([0])
    assert pool.allocate(3) == [3, 1, 0], "3 stores nothing, then 1 was freed before 0"


@pytest.mark.task("3.1.1")
def test_a_request_gives_its_last_cached_block_first(llm):
    pool = llm.BlockPool(3)
    pool.free(kept(pool, 3))
    assert pool.allocate(1) == [2], "the tail of a chain is of use to fewer than its head: it goes first"
    assert pool.allocate(2) == [1, 0]


@pytest.mark.task("3.1.1")
def test_blocks_that_nothing_finds_are_taken_before_cached_ones(llm):
    evicted = []
    pool = llm.BlockPool(6, on_evict=evicted.append)
    first, late = kept(pool, 2), pool.allocate(2)
    pool.free(first)
    pool.free(late)
    assert set(pool.allocate(2)) == set(late), "what a finished answer leaves, before what can be shared"
    assert pool.allocate(2) == [4, 5] and evicted == []
    assert pool.allocate(2) == [1, 0] and evicted == [1, 0], "of one request, the last block goes first"


@pytest.mark.task("3.1.1")
def test_a_reset_pool_is_a_new_one(llm):
    evicted = []
    pool = llm.BlockPool(4, on_evict=evicted.append)
    pool.share(kept(pool, 3))
    pool.free([2, 1])
    pool.reset()
    pool.check([])
    with pytest.raises(ValueError):
        pool.share([0])
    assert pool.allocate(4) == [0, 1, 2, 3] and evicted == [], "no cache is told"


@pytest.mark.task("3.1.1")
def test_a_shared_block_is_free_when_its_last_holder_goes(llm):
    pool = llm.BlockPool(2)
    (block,) = pool.allocate(1)
    pool.share([block])
    pool.share([block])
    assert pool.ref_count(block) == 3
    pool.free([block])
    pool.free([block])
    assert pool.num_free == 1, "one holder is left"
    pool.check([[block]])
    pool.free([block])
    assert pool.num_free == 2


@pytest.mark.task("3.1.1")
def test_freeing_too_often_changes_nothing(llm):
    pool = llm.BlockPool(4)
    held = pool.allocate(2)
    with pytest.raises(ValueError):
        pool.free([*held, 3])
    with pytest.raises(ValueError):
        pool.free([held[0], held[0]])
    assert [pool.ref_count(block) for block in held] == [1, 1]
    pool.free(held)
    with pytest.raises(ValueError):
        pool.free([held[0]])
    assert pool.num_free == 4
    pool.check([])


@pytest.mark.task("3.1.1")
def test_there_is_nothing_to_share_in_a_free_block(llm):
    pool = llm.BlockPool(4)
    held = pool.allocate(1)
    with pytest.raises(ValueError):
        pool.share([held[0], 2])
    holders = pool.ref_count(held[0])
    assert holders == 1, (
        f"block {held[0]} has {holders} holders: share([{held[0]}, 2]) raised, and took one all the same"
    )
    with pytest.raises(ValueError):
        pool.mark_cached(2)
    for strange in (-1, 4):
        with pytest.raises(ValueError):
            pool.ref_count(strange)


@pytest.mark.task("3.1.1")
def test_a_cached_block_can_be_taken_back_until_it_is_evicted(llm):
    evicted = []
    pool = llm.BlockPool(3, on_evict=evicted.append)
    first, second = pool.allocate(2)
    pool.mark_cached(first)
    pool.free([first, second])
    assert pool.num_free == 3, "a cached block without a holder is free"
    pool.share([first])
    assert (pool.num_free, pool.ref_count(first)) == (2, 1), "a shared block is held, and so it is not free"
    pool.free([first])
    assert pool.allocate(2) == [second, 2] and evicted == []
    assert pool.allocate(1) == [first] and evicted == [first]
    pool.free([first])
    with pytest.raises(ValueError):
        pool.share([first])
    pool.allocate(1)
    assert evicted == [first], "a block that is not cached any more is evicted no second time"


@pytest.mark.task("3.1.1")
@pytest.mark.parametrize("tables", [[], [[0]], [[0, 1], [0]], [[0, 1], [2]], [[0, 1, 7]]])
def test_check_tells_what_the_tables_do_not_explain(llm, tables):
    pool = llm.BlockPool(4)
    pool.allocate(2)
    pool.check([[0], [1]])
    with pytest.raises(RuntimeError):
        pool.check(tables)


@pytest.mark.task("3.1.1")
@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_calls_keeps_the_books(llm, seed):
    rng = random.Random(seed)
    cached = set()
    pool = llm.BlockPool(12, 4, on_evict=cached.remove)
    tables = []
    for _ in range(400):
        action = rng.choice(["allocate", "share", "free", "cache"])
        if action == "allocate":
            count = rng.randrange(5)
            if count <= pool.num_free:
                tables.append(pool.allocate(count))
        elif action == "share" and tables:
            table = list(rng.choice(tables))
            pool.share(table)
            tables.append(table)
        elif action == "free" and tables:
            pool.free(tables.pop(rng.randrange(len(tables))))
        elif tables and (table := rng.choice(tables)):
            block = rng.choice(table)
            pool.mark_cached(block)
            cached.add(block)
        pool.check(tables)
        held = Counter(block for table in tables for block in table)
        assert pool.num_free == 12 - len(held)
