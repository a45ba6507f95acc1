"""Paged attention: each request reads its own blocks of a pool (arXiv 2309.06180, section 4.1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import mlx.core as mx

from tiny_llm_lab.types import KernelOps, Memory
from tiny_llm_lab.types.computing.layer_stack import StackStep
from tiny_llm_lab.types.computing.paged import PagedCache

from ..layers.attention import scaled_dot_product_attention_grouped
from .kv_quantization import dequantize_rows
from .step_layout import StepLayout

_Pool = tuple[mx.array, mx.array | None]  # with the scales of its rows if the pool is int8


def paged_attention(
    q: mx.array,
    keys: mx.array,
    values: mx.array,
    starts: Sequence[int],
    lengths: Sequence[int],
    tables: mx.array,
    scale: float | None = None,
    kv_scales: tuple[mx.array, mx.array] | None = None,
) -> mx.array:
    """q [T, H, 1, D] over keys and values [num_blocks, G, block_size, D] -> [T, 1, H * D] in q's dtype.

    Request r has rows starts[r] to starts[r + 1] - 1, lengths[r] stored tokens and block table tables[r]
    (int32). A row attends to the stored tokens of its own request up to itself, and to nothing else in the
    blocks. `scale` None means 1 / sqrt(D). Pools of int8 (from task 3.2.5 on) come with `kv_scales`:
    the scales of the keys and the scales of the values, [num_blocks, G, block_size] float32 each.
    """
    pools = tuple(zip((keys, values), kv_scales or (None, None), strict=True))
    counts = [end - start for start, end in pairwise(starts)]
    single = [r for r, count in enumerate(counts) if count == 1]
    several = [r for r, count in enumerate(counts) if count > 1]
    parts = []
    if single:
        rows, at = mx.array([starts[r] for r in single], mx.int32), mx.array(single, mx.int32)
        parts.append(_decodes(q[rows], pools, [lengths[r] for r in single], tables[at], scale))
    for r in several:
        k, v = (_gathered(*pool, tables[r : r + 1], lengths[r], q.dtype) for pool in pools)
        chunk = q[starts[r] : starts[r + 1]].transpose(2, 1, 0, 3)
        out = scaled_dot_product_attention_grouped(chunk, k, v, scale, "causal")
        parts.append(out.transpose(2, 1, 0, 3))
    # Single rows come first among the results: the place of each row there.
    order = [row for r in (*single, *several) for row in range(starts[r], starts[r + 1])]
    back = mx.array(sorted(range(len(order)), key=order.__getitem__), mx.int32)
    out = mx.concatenate(parts)[back] if parts else q
    return out.transpose(0, 2, 1, 3).flatten(2)


def _decodes(
    q: mx.array, pools: tuple[_Pool, ...], lengths: list[int], tables: mx.array, scale: float | None
) -> mx.array:
    """Returns the attention of requests with a single row, in one product: q [R, H, 1, D] -> like q."""
    visible = mx.arange(max(lengths)) < mx.array(lengths)[:, None]
    k, v = (_gathered(*pool, tables, visible.shape[-1], q.dtype) for pool in pools)
    # What follows a shorter request's end may be infinite, and 0 times infinity is not a number.
    v = mx.where(visible[:, None, :, None], v, mx.zeros((), v.dtype))
    return scaled_dot_product_attention_grouped(q, k, v, scale, visible[:, None, None])


@dataclass(eq=False)
class PagedLayer(Memory):
    """The pools of one layer in one step."""

    cache: PagedCache
    index: int  # the layer's number
    layout: StepLayout

    def offsets(self, num_rows: int) -> list[int]:
        """Returns the positions [T] of the rows, whatever `num_rows` is."""
        return self.layout.positions

    def attend(self, ops: KernelOps, q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
        """Store k, v [T, G, 1, D] in the rows' slots, in place; attend with q [T, H, 1, D] -> [T, 1, H * D].

        A row attends to its own request's tokens up to itself. `ops` store and attend.
        """
        cache, i, at = self.cache, self.index, self.layout
        self._store(ops, cache.keys, cache.key_scales, k)
        self._store(ops, cache.values, cache.value_scales, v)
        kv_scales = (cache.key_scales[i], cache.value_scales[i]) if cache.key_scales else None
        where = (at.query_starts, at.lengths, at.block_tables, scale)
        return ops.paged_attention(q, cache.keys[i], cache.values[i], *where, kv_scales)

    def enter(self, step: StackStep) -> bool:
        """See `Memory`: True for pools of the step's dtype, or of int8."""
        step.pages = (self.cache, self.layout)
        return self.cache.keys[self.index].dtype in (step.x.dtype, mx.int8)

    def _store(self, ops: KernelOps, pools: list[mx.array], scales: list[mx.array], rows: mx.array) -> None:
        if scales:
            rows, factors = ops.quantize_rows(rows)
            self._put(ops, scales, factors)
        self._put(ops, pools, rows)

    def _put(self, ops: KernelOps, pools: list[mx.array], rows: mx.array) -> None:
        pool = pools[self.index]
        pools[self.index] = ops.append_rows(pool, rows.astype(pool.dtype), self.layout.slots)


def _gathered(
    pool: mx.array, scales: mx.array | None, tables: mx.array, length: int, dtype: mx.Dtype
) -> mx.array:
    """Returns the first `length` tokens of each table [B, blocks], one after another: [B, G, length, D]."""
    _, groups, size, dim = pool.shape
    used = tables[:, : -(-length // size)]
    blocks = pool[used] if scales is None else dequantize_rows(pool[used], scales[used], dtype)
    rows = blocks.transpose(0, 2, 1, 3, 4).reshape(len(tables), groups, -1, dim)
    return rows[:, :, :length].astype(dtype)
