"""Day 3.1: the pool that says whose block is whose, the layout of a step, pools of keys and values."""

from dataclasses import replace

import mlx.core as mx
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.helpers.any_order import PoolModel, check_in_any_order, result_of
from tests.helpers.tolerance import active_bytes
from tests.helpers.toy import QWEN3

from tiny_llm_lab.types import UserError
from tiny_llm_lab.types.computing.paged import Slice

# The task of each test that names no other.
pytestmark = pytest.mark.task("3.1.1")


def test_a_new_pool_gives_its_blocks_in_order(llm):
    pool = llm.BlockPool(4, 16)
    assert (pool.num_blocks, pool.block_size, pool.num_free) == (4, 16, 4)
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.num_free == 1
    assert [pool.ref_count(block) for block in range(4)] == [1, 1, 1, 0]
    pool.check([[0, 1], [2]])


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


def test_of_cached_blocks_the_one_that_is_free_longest_comes_first(llm):
    pool = llm.BlockPool(4)
    kept(pool, 3)
    pool.free([1])
    pool.free([0])
    assert pool.allocate(3) == [3, 1, 0], "3 stores nothing, then 1 was freed before 0"


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


# Whose the rows of a step are, and the pools that hold keys and values in blocks


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


# The pool of blocks and the layout of a step, under calls in any order, beside a simple model


N = 6
BLOCKS = st.lists(st.integers(-1, N), max_size=4)


class AnyPool(RuleBasedStateMachine):
    def __init__(self, llm):
        super().__init__()
        self.errors = llm.OutOfBlocksError, ValueError
        self.evicted = []
        self.pool = llm.BlockPool(N, 4, on_evict=self.evicted.append)
        self.model = PoolModel(N)

    @rule(count=st.integers(-1, N + 1))
    def allocate(self, count):
        got = result_of(lambda: self.pool.allocate(count), *self.errors)
        if count < 0:
            assert got is ValueError
        elif count > len(self.model.empty + self.model.kept):
            assert got is self.errors[0], "more blocks than are free"
        else:
            assert got == self.model.allocate(count), "empty blocks first, then the one free longest"

    @rule(blocks=BLOCKS)
    def share(self, blocks):
        got, may = result_of(lambda: self.pool.share(blocks), ValueError), self.model.may_share(blocks)
        assert got is (None if may else ValueError)
        if may:
            self.model.share(blocks)

    @rule(blocks=BLOCKS)
    def free(self, blocks):
        got, may = result_of(lambda: self.pool.free(blocks), ValueError), self.model.may_free(blocks)
        assert got is (None if may else ValueError)
        if may:
            self.model.free(blocks)

    @rule(block=st.integers(-1, N))
    def mark(self, block):
        may = 0 <= block < N and self.model.holders[block] > 0
        assert result_of(lambda: self.pool.mark_cached(block), ValueError) is (None if may else ValueError)
        if may:
            self.model.cached.add(block)

    @rule(order=st.permutations(range(N)), count=st.integers(1, N), marked=st.integers(0, N))
    def keep_and_free(self, order, count, marked):
        """Several that are held, of which the first ones are cached."""
        held = [block for block in order if self.model.holders[block]][:count]
        for block in held[:marked]:
            self.mark(block)
        self.free(held)

    @rule(order=st.permutations(range(N)), count=st.integers(1, 3))
    def share_some(self, order, count):
        self.share([b for b in order if self.model.holders[b] or b in self.model.cached][:count])

    @rule(stray=st.integers(0, N), more=st.booleans())
    def check_other_tables(self, stray, more):
        tables = [*self._tables(), [stray]] if more else [t for t in self._tables() if t != [stray]]
        if tables != self._tables():
            assert result_of(lambda: self.pool.check(tables), RuntimeError) is RuntimeError

    @rule()
    def reset(self):
        self.pool.reset()
        self.model = PoolModel(N)
        self.evicted.clear()

    @invariant()
    def agree(self):
        assert [self.pool.ref_count(block) for block in range(N)] == self.model.holders
        assert self.pool.num_free == len(self.model.empty + self.model.kept)
        assert self.evicted == self.model.evicted, "each cached block that was allocated, once"
        self.pool.check(self._tables())

    def _tables(self):
        return [[block] for block, count in enumerate(self.model.holders) for _ in range(count)]


def test_a_pool_in_any_order(llm):
    check_in_any_order(lambda: AnyPool(llm), examples=150)


class AnyLayouts(RuleBasedStateMachine):
    """Every layout is a slice of each request, in any order of the requests."""

    def __init__(self, llm):
        super().__init__()
        self.of = llm.StepLayout.of

    @rule(
        size=st.integers(1, 4),
        parts=st.lists(
            st.tuples(st.lists(st.integers(0, 9), max_size=3), st.integers(-1, 8), st.integers(0, 5)),
            max_size=4,
        ),
    )
    def lay_out(self, size, parts):
        slices = [Slice(*part) for part in parts]
        if any(old < 0 or new < 1 or old + new > size * len(ids) for ids, old, new in parts):
            assert result_of(lambda: self.of(size, slices), ValueError) is ValueError
            return
        got = self.of(size, slices)
        rows = [(ids, t) for ids, old, new in parts for t in range(old, old + new)]
        assert got.positions == [t for _, t in rows]
        assert got.slots.tolist() == [ids[t // size] * size + t % size for ids, t in rows]
        assert got.lengths == [old + new for _, old, new in parts]
        assert got.query_starts == [sum(part[2] for part in parts[:r]) for r in range(len(parts) + 1)]
        used = [ids[: -(-(old + new) // size)] for ids, old, new in parts]
        longest = max(map(len, used), default=0)
        assert got.block_tables.tolist() == [ids + [0] * (longest - len(ids)) for ids in used]


@pytest.mark.task("3.1.2")
def test_any_layout(llm):
    check_in_any_order(lambda: AnyLayouts(llm), examples=60, steps=10)
