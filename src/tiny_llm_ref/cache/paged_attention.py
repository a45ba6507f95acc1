"""Paged attention: each request reads its own blocks of a pool (arXiv 2309.06180, section 4.1)."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import mlx.core as mx

from tiny_llm_lab.types import KernelOps, KvStorage
from tiny_llm_lab.types.computing.paged import PagedCache, StepLayout

from ..layers.attention import scaled_dot_product_attention_grouped
from .kv_quantization import dequantize_rows
from .storage import ARRAYS

_Pool = tuple[mx.array, mx.array | None]  # with the scales of its rows if the pool is int8


@dataclass(eq=False)
class PagedAttention:
    """Attention of the rows of one layout over pools of blocks.

    All layers of a step share one object, so what depends only on the layout is computed once.
    """

    layout: StepLayout

    def __call__(
        self,
        q: mx.array,
        keys: mx.array,
        values: mx.array,
        scale: float | None = None,
        kv_scales: tuple[mx.array, mx.array] | None = None,
    ) -> mx.array:
        """q [T, H, 1, D] over keys and values [num_blocks, G, block_size, D] -> [T, 1, H * D] in q's dtype.

        A row attends to the stored tokens of its own request up to itself, and to nothing else in the
        blocks. `scale` None means 1 / sqrt(D). Pools of int8 (from task 3.2.5 on) come with `kv_scales`:
        the scales of the keys and the scales of the values, [num_blocks, G, block_size] float32 each.
        """
        pools = tuple(zip((keys, values), kv_scales or (None, None), strict=True))
        parts = [self._decodes(q, pools, scale)] if self._single else []
        for r in self._several:
            start, end = self.layout.query_starts[r : r + 2]
            length, table = self.layout.lengths[r], self.layout.block_tables[r : r + 1]
            k, v = (_gathered(*pool, table, length, q.dtype) for pool in pools)
            chunk = q[start:end].transpose(2, 1, 0, 3)
            out = scaled_dot_product_attention_grouped(chunk, k, v, scale, "causal")
            parts.append(out.transpose(2, 1, 0, 3))
        out = mx.concatenate(parts)[self._back] if parts else q
        return out.transpose(0, 2, 1, 3).flatten(2)

    def _decodes(self, q: mx.array, pools: tuple[_Pool, ...], scale: float | None) -> mx.array:
        """Returns the attention of all requests with a single row, in one product: [rows, H, 1, D]."""
        rows, tables, visible = self._padded
        k, v = (_gathered(*pool, tables, visible.shape[-1], q.dtype) for pool in pools)
        # What follows a shorter request's end may be infinite, and 0 times infinity is not a number.
        v = mx.where(visible[:, None, :, None], v, mx.zeros((), v.dtype))
        return scaled_dot_product_attention_grouped(q[rows], k, v, scale, visible[:, None, None])

    @cached_property
    def _single(self) -> list[int]:
        starts = self.layout.query_starts
        return [r for r, start in enumerate(starts[:-1]) if starts[r + 1] == start + 1]

    @cached_property
    def _several(self) -> list[int]:
        starts = self.layout.query_starts
        return [r for r, start in enumerate(starts[:-1]) if starts[r + 1] > start + 1]

    @cached_property
    def _padded(self) -> tuple[mx.array, mx.array, mx.array]:
        """For the R requests with a single row: their rows, tables, and visible stored tokens [R, S]."""
        single, layout = mx.array(self._single, mx.int32), self.layout
        lengths = [layout.lengths[r] for r in self._single]
        visible = mx.arange(max(lengths)) < mx.array(lengths)[:, None]
        rows = mx.array([layout.query_starts[r] for r in self._single], mx.int32)
        return rows, layout.block_tables[single], visible

    @cached_property
    def _back(self) -> mx.array:
        """For each row, its place among the results, in which single rows come first."""
        starts = self.layout.query_starts
        order = [row for r in (*self._single, *self._several) for row in range(starts[r], starts[r + 1])]
        return mx.array(sorted(range(len(order)), key=order.__getitem__), mx.int32)


@dataclass(eq=False)
class OpsPagedAttention:
    """Computes what `PagedAttention` computes, on a model's operators."""

    layout: StepLayout
    ops: KernelOps

    def __call__(
        self,
        q: mx.array,
        keys: mx.array,
        values: mx.array,
        scale: float | None = None,
        kv_scales: tuple[mx.array, mx.array] | None = None,
    ) -> mx.array:
        """Like `PagedAttention`."""
        at, factor = self.layout, 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        where = (at.query_starts, at.lengths, at.block_tables)
        return self.ops.paged_attention(q, keys, values, *where, factor, kv_scales)


@dataclass(eq=False)
class PagedLayer:
    """The pools of one layer in one step."""

    cache: PagedCache
    index: int  # the layer's number
    layout: StepLayout
    attention: PagedAttention | OpsPagedAttention  # of `layout`
    storage: KvStorage = ARRAYS

    def offsets(self, num_rows: int) -> list[int]:
        """Returns the positions [T] of the rows, whatever `num_rows` is."""
        return self.layout.positions

    def attention_mask(self, num_new_tokens: int) -> Literal["causal"]:
        """Returns "causal": `attend` masks the tokens after a row's own."""
        return "causal"

    def attend(self, q: mx.array, k: mx.array, v: mx.array, scale: float | None = None) -> mx.array:
        """Store k, v [T, G, 1, D] in the rows' slots, in place; attend with q [T, H, 1, D] -> [T, 1, H * D].

        A row attends to its own request's tokens up to itself. `scale` None means 1 / sqrt(D).
        """
        cache, i = self.cache, self.index
        self._store(cache.keys, cache.key_scales, k)
        self._store(cache.values, cache.value_scales, v)
        kv_scales = (cache.key_scales[i], cache.value_scales[i]) if cache.key_scales else None
        return self.attention(q, cache.keys[i], cache.values[i], scale, kv_scales)

    def _store(self, pools: list[mx.array], scales: list[mx.array], rows: mx.array) -> None:
        if scales:
            rows, factors = self.storage.quantize_rows(rows)
            self._put(scales, factors)
        self._put(pools, rows)

    def _put(self, pools: list[mx.array], rows: mx.array) -> None:
        pool = pools[self.index]
        pools[self.index] = self.storage.append_rows(pool, rows.astype(pool.dtype), self.layout.slots)


def _gathered(
    pool: mx.array, scales: mx.array | None, tables: mx.array, length: int, dtype: mx.Dtype
) -> mx.array:
    """Returns the first `length` tokens of each table [B, blocks], one after another: [B, G, length, D]."""
    _, groups, size, dim = pool.shape
    used = tables[:, : -(-length // size)]
    blocks = pool[used] if scales is None else dequantize_rows(pool[used], scales[used], dtype)
    rows = blocks.transpose(0, 2, 1, 3, 4).reshape(len(tables), groups, -1, dim)
    return rows[:, :, :length].astype(dtype)
