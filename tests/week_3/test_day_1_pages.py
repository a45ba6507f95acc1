"""Day 3.1: whose the rows of a step are, and the pools that hold keys and values in blocks."""

from dataclasses import replace

import mlx.core as mx
import pytest
from tests.helpers.tolerance import active_bytes
from tests.helpers.toy import QWEN3

from tiny_llm_lab.types.computing.paged import Slice

MiB = 2**20


def layout(llm, block_size, *parts):
    return llm.StepLayout.of(block_size, [Slice(*part) for part in parts])


@pytest.mark.task("3.1.2")
def test_layout_of_a_chunk_and_two_decodes(llm):
    # Blocks of 4: a chunk of 5 tokens behind 2, a decode behind 3, a decode behind 8.
    got = layout(llm, 4, ([7, 2], 2, 5), ([5], 3, 1), ([1, 0, 9], 8, 1))
    assert got.positions == [2, 3, 4, 5, 6, 3, 8]
    assert got.query_starts == [0, 5, 6, 7], (
        "request r has the rows query_starts[r] to query_starts[r + 1] - 1"
    )
    assert got.lengths == [7, 4, 9], "stored tokens, with those of this step"
    assert got.slots.dtype == mx.int32
    assert got.block_tables.dtype == mx.int32
    want = [30, 31, 8, 9, 10, 23, 36]
    assert got.slots.tolist() == want, "block * block_size + place"
    assert got.block_tables.tolist() == [[7, 2, 0], [5, 0, 0], [1, 0, 9]], "zeros behind the last block"


@pytest.mark.task("3.1.3")
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_pools(llm, dtype):
    cache = llm.PagedKvCache(QWEN3, 6, 16, dtype)
    for pools in (cache.keys, cache.values):
        assert [pool.shape for pool in pools] == [(6, 2, 16, 24)] * 2, (
            "[num_blocks, G, block_size, D] a layer"
        )
        assert {pool.dtype for pool in pools} == {dtype}
    assert cache.nbytes == 2 * 2 * 6 * 2 * 16 * 24 * dtype.size
    assert (cache.num_blocks, cache.block_size) == (6, 16)


@pytest.mark.task("3.1.3")
def test_pools_are_there_from_the_start_and_given_back(llm):
    before = active_bytes()
    cache = llm.PagedKvCache(replace(QWEN3, head_dim=64), 512)
    size = cache.nbytes
    assert size == 16 * MiB
    assert size <= active_bytes() - before < 1.1 * size, "each pool once, allocated when the cache is made"
    cache.release()
    assert cache.nbytes == 0
    assert active_bytes() - before < MiB


@pytest.mark.task("3.1.3")
@pytest.mark.parametrize(("num_blocks", "block_size"), [(8, 4), (9, 3)])
def test_a_step_beyond_the_pool_is_an_error(llm, num_blocks, block_size):
    cache = llm.PagedKvCache(QWEN3, num_blocks, block_size)
    assert len(cache.begin_step(layout(llm, block_size, ([num_blocks - 1], 0, 1)))) == 2, "one per layer"
    for block in (num_blocks, 1000, -1):
        with pytest.raises(ValueError):
            cache.begin_step(layout(llm, block_size, ([0], 0, 1), ([1, block], block_size, 1)))
        # A block that is only read.
        with pytest.raises(ValueError):
            cache.begin_step(layout(llm, block_size, ([block, 0], block_size, 1)))


@pytest.mark.task("3.1.3")
def test_no_step_begins_after_the_release(llm):
    cache = llm.PagedKvCache(QWEN3, 8, 4)
    cache.release()
    with pytest.raises(ValueError):
        cache.begin_step(layout(llm, 4, ([0], 0, 1)))
