"""Caches of keys and values under any order of operations, on any operators, beside NumPy arrays."""

import math
from collections import Counter
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import mlx.core as mx
import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.helpers import oracle
from tests.helpers.any_order import result_of
from tests.helpers.tolerance import EXACT, F32, Tolerance, assert_close
from tests.helpers.toy import QWEN3, random_array

from tiny_llm_lab.types import KernelOps
from tiny_llm_lab.types.computing.paged import Slice

G, D = 2, 4
ROWS, LENGTH = 5, 9


class AnyBatch(RuleBasedStateMachine):
    """`BatchingKvCache`: rows of their own lengths, values being the negated keys."""

    def __init__(self, llm: Any, ops: KernelOps | None = None, may_reserve: bool = False) -> None:
        super().__init__()
        self.llm, self.ops, self.may_reserve = llm, ops or llm.ArrayStorage(), may_reserve
        self.own = (ops,) if ops else ()  # a cache of day 2.1 may take no storage
        self.seeds = count()
        self.rows: list[np.ndarray] = []

    @initialize(limit=st.sampled_from((None, LENGTH, 70)), headroom=st.integers(0, 3))
    def begin(self, limit: int | None, headroom: int) -> None:
        self.limit = limit
        ahead = {"headroom": headroom} if self.may_reserve else {}
        self.batch = self.llm.BatchingKvCache(ROWS, limit, self.ops, **ahead)

    @rule(length=st.sampled_from((0, 1, 3, LENGTH, LENGTH + 1, 60, 64, 65)))
    def add(self, length: int) -> None:
        cache, key = self.llm.TinyKvFullCache(*self.own), self._random(1, length)
        if length:
            cache.update_and_fetch(key, -key)
        fits = length > 0 and (self.limit is None or length <= self.limit) and len(self.rows) < ROWS
        got = result_of(lambda: self.batch.add_request(cache), ValueError)
        assert got == (len(self.rows) if fits else ValueError)
        if fits:
            self.rows.append(np.array(key)[0])

    @rule(row=st.integers(-1, ROWS))
    def remove(self, row: int) -> None:
        is_active = 0 <= row < len(self.rows)
        got = result_of(lambda: self.batch.remove_request(row), ValueError)
        assert got is (None if is_active else ValueError)
        if is_active:
            self.rows[row] = self.rows[-1]
            self.rows.pop()

    @precondition(lambda self: self.rows)
    @rule(new=st.integers(1, 3), extra=st.sampled_from((0, 0, 0, 0, 1, -1)))
    def append(self, new: int, extra: int) -> None:
        key = self._random(len(self.rows) + extra, new)
        lengths, before = [row.shape[1] + new for row in self.rows], self.batch.offset
        kept = list(before)
        mask = np.array(self.batch.attention_mask(new))
        got = result_of(lambda: self.batch.update_and_fetch(key, -key), ValueError)
        assert before == kept, "the list of before an append stays as it was"
        if extra or (self.limit is not None and max(lengths) > self.limit):
            assert got is ValueError
            return
        self.rows = [np.concatenate([a, b], axis=1) for a, b in zip(self.rows, np.array(key), strict=True)]
        for stored, sign in zip(got, (1, -1), strict=True):
            assert stored.shape == (len(self.rows), G, max(lengths), D)
            for i, row in enumerate(self.rows):
                assert_close(stored[i, :, : lengths[i]], sign * row, EXACT, what=f"row {i}")
        columns, last = np.arange(max(lengths)), np.array(lengths)[:, None] - new + np.arange(new)
        assert (mask == (columns <= last[..., None])[:, None]).all()

    @precondition(lambda self: self.may_reserve)
    @rule(num_tokens=st.integers(1, 70))
    def reserve(self, num_tokens: int) -> None:
        self.batch.reserve(num_tokens)

    @rule()
    def release(self) -> None:
        self.batch.release()
        self.rows = []

    @invariant()
    def agree(self) -> None:
        assert self.batch.offset == [row.shape[1] for row in self.rows]
        rows, _, room, _ = self.batch.keys.shape
        assert rows <= ROWS, f"storage of {rows} rows for {ROWS} requests"
        assert self.limit is None or room <= self.limit, f"room for {room} of {self.limit} tokens a row"

    def _random(self, rows: int, length: int) -> mx.array:
        return random_array(next(self.seeds), rows, G, length, D)


@dataclass
class _Stored:
    """The blocks of a request, and its keys and values by layer."""

    blocks: list[int]
    stored: list[list[np.ndarray]]  # of keys and values: [G, S, D] of each layer
    length: int = 0


class AnyPages(RuleBasedStateMachine):
    """`PagedKvCache` and `StepLayout`: chunks and decodes of requests that come, share blocks and leave."""

    BLOCKS, SIZE, LAYERS, H = 12, 3, 2, 4

    def __init__(self, llm: Any, ops: KernelOps | None = None, kv_bits: int | None = None) -> None:
        super().__init__()
        config = replace(QWEN3, num_key_value_heads=G, head_dim=D, num_hidden_layers=self.LAYERS)
        self.llm, self.kv_bits, self.ops = llm, kv_bits, ops or llm.ArrayOps()
        self.cache = llm.PagedKvCache(config, self.BLOCKS, self.SIZE, mx.float32, kv_bits)
        self.tolerance = F32 if kv_bits is None else Tolerance(0, 0.1)
        self.requests: list[_Stored] = []
        self.seeds = count()

    @initialize()
    def begin(self) -> None:
        for _ in range(3):
            self.join(3, 0)

    @rule(parent=st.integers(0, 3), num_shared=st.integers(0, 2))
    def join(self, parent: int, num_shared: int) -> None:
        """A request of no tokens, or of the first full blocks of another."""
        old = self.requests[parent] if parent < len(self.requests) else _Stored([], self._nothing())
        length = min(num_shared, old.length // self.SIZE) * self.SIZE
        stored = [[layer[:, :length] for layer in each] for each in old.stored]
        self.requests.append(_Stored(old.blocks[: length // self.SIZE], stored, length))

    @precondition(lambda self: self.requests)
    @rule(number=st.integers(0, 3))
    def leave(self, number: int) -> None:
        """What a block stores that nobody holds any more must not reach anyone."""
        left = self.requests.pop(number % len(self.requests))
        free = self._free()
        for block in set(left.blocks) & set(free) if self.kv_bits is None else ():
            for pool in (*self.cache.keys, *self.cache.values):
                pool[block] = math.nan

    @precondition(lambda self: self.requests)
    @rule(
        order=st.permutations(range(4)),
        news=st.lists(st.sampled_from((1, 1, 1, 2, 5)), min_size=1, max_size=4),
        shuffle=st.randoms(use_true_random=False),
    )
    def step(self, order: list[int], news: list[int], shuffle: Any) -> None:
        self._step([self.requests[i] for i in order if i < len(self.requests)], news, shuffle)

    @precondition(lambda self: self.requests)
    @rule(order=st.permutations(range(4)), shuffle=st.randoms(use_true_random=False))
    def decode(self, order: list[int], shuffle: Any) -> None:
        self._step([self.requests[i] for i in order if i < len(self.requests)], [1] * 4, shuffle)

    @rule(length=st.integers(1, 7), shuffle=st.randoms(use_true_random=False))
    def twins(self, length: int, shuffle: Any) -> None:
        """Equally long requests one after the other, and in turns: only their tables differ."""
        while self.requests:
            self.leave(0)
        for _ in range(2):
            self.join(3, 0)
        for news in ([length], [1]):
            for each in self.requests:
                self._step([each], news, shuffle)

    def _step(self, chosen: list[_Stored], news: list[int], shuffle: Any) -> None:
        chosen = chosen[: len(news)]
        slices, free = [], self._free()
        shuffle.shuffle(free)
        for each, new in list(zip(chosen, news, strict=False)):
            missing = max(0, -(-(each.length + new) // self.SIZE) - len(each.blocks))
            if missing > len(free):
                chosen = chosen[: len(slices)]
                break
            each.blocks = each.blocks + [free.pop() for _ in range(missing)]
            slices.append(Slice(each.blocks, each.length, new))
        layers = self.cache.begin_step(self.llm.StepLayout.of(self.SIZE, slices))
        if slices:
            for index, layer in enumerate(layers):
                self._attend(index, layer, chosen, [each.num_new for each in slices])
        for each, part in zip(chosen, slices, strict=True):
            each.length += part.num_new
        self.cache.materialize()

    @precondition(lambda self: self.requests)
    @rule(stray=st.sampled_from((-1, BLOCKS)))
    def beyond_the_pool(self, stray: int) -> None:
        layout = self.llm.StepLayout.of(
            self.SIZE, [Slice([0, stray], self.SIZE - 1, 1), Slice([stray], 0, 1)]
        )
        assert result_of(lambda: self.cache.begin_step(layout), ValueError) is ValueError

    def _attend(self, index: int, layer: Any, chosen: list[_Stored], news: list[int]) -> None:
        q, k, v = (random_array(next(self.seeds), sum(news), heads, 1, D) for heads in (self.H, G, G))
        got = np.array(layer.attend(self.ops, q, k, v, D**-0.5))
        first = 0
        for each, new in zip(chosen, news, strict=True):
            rows = slice(first, first + new)
            first += new
            for kind, added in enumerate((k, v)):
                fresh = np.array(added)[rows, :, 0].transpose(1, 0, 2)
                each.stored[kind][index] = np.concatenate([each.stored[kind][index], fresh], axis=1)
            keys, values = (each.stored[kind][index][None] for kind in (0, 1))
            own = np.array(q)[rows, :, 0].transpose(1, 0, 2)[None]
            want = oracle.attention(own, keys, values, causal=True)[0].swapaxes(0, 1).reshape(new, 1, -1)
            assert_close(got[rows], want, self.tolerance, what=f"layer {index}, blocks {each.blocks}")

    def _free(self) -> list[int]:
        held = Counter(block for each in self.requests for block in each.blocks)
        return [block for block in range(self.BLOCKS) if not held[block]]

    def _nothing(self) -> list[list[np.ndarray]]:
        return [[np.zeros((G, 0, D), np.float32)] * self.LAYERS for _ in "kv"]
