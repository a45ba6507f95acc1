"""Day 3.1: the paged KV cache, first part: the pool that says whose block is whose."""

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
