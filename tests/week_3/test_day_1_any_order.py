"""Day 3.1: the pool of blocks and the layout of a step, under calls in any order, beside a simple model."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.helpers.any_order import PoolModel, check_in_any_order, result_of

from tiny_llm_lab.types.computing.paged import Slice

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


@pytest.mark.task("3.1.1")
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
