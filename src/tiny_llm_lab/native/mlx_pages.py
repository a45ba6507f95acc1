"""Keys and values in blocks of a pool, gathered for MLX's fused attention."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from typing import Protocol, TypeVar

import mlx.core as mx
import numpy as np

Made = TypeVar("Made")


class Once(Protocol):
    """Makes a thing anew only for another key than at the last call for `what`."""

    def __call__(self, what: str, key: Hashable, make: Callable[[], Made]) -> Made: ...


@dataclass(frozen=True)
class _Segment:
    """Rows of a step that one call of attention computes: a chunk, or requests with a single row."""

    rows: slice
    blocks: mx.array  # [requests, G, blocks] uint32: which of a pool's blocks * G pieces to gather
    length: int | None  # stored tokens of a chunk's request
    mask: mx.array | None  # [requests, 1, 1, S] of single rows, None if they see all that is gathered


class MlxPages:
    """Storing in blocks, and attention over them."""

    def __init__(self, once: Once, reads_hidden: bool) -> None:
        """`once` keeps what all layers of a step share; `reads_hidden` as for `MlxOps`."""
        self._once = once
        self._reads_hidden = reads_hidden

    def append_rows(self, stored: mx.array, added: mx.array, slots: mx.array) -> mx.array:
        """See `KernelOps.append_rows`."""
        groups, size = stored.shape[1:3]
        # The array goes into what is kept: while it lives no other one has its id.
        make = partial(_slot_places, slots, groups, size)
        return put(stored, self._once("slots", (id(slots), groups, size), make)[1], added)

    def attention(
        self,
        query: mx.array,
        key: mx.array,
        value: mx.array,
        starts: Sequence[int],
        lengths: Sequence[int],
        tables: mx.array,
        scale: float,
        kv_scales: tuple[mx.array, mx.array] | None = None,
    ) -> mx.array:
        """See `KernelOps.paged_attention`."""
        groups, size = key.shape[1:3]
        make = partial(_segments, starts, lengths, tables, groups, size)
        segments = self._once("segments", (id(tables), groups, size), make)[1]
        of_keys, of_values = kv_scales or (None, None)
        parts = []
        for part in segments:
            k, v = (
                _gathered(pool, scales, part, query.dtype)
                for pool, scales in ((key, of_keys), (value, of_values))
            )
            q = query if len(segments) == 1 else query[part.rows]
            if part.length is None:
                if part.mask is not None and self._reads_hidden:
                    v = cleared(v, part.mask)
                out = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=part.mask)
                parts.append(out.transpose(0, 2, 1, 3).flatten(2))
            else:
                q = q.transpose(2, 1, 0, 3)
                out = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal")
                parts.append(out.transpose(2, 0, 1, 3).flatten(2))
        if not parts:
            return query.reshape(0, 1, query.shape[1] * query.shape[3])
        return parts[0] if len(parts) == 1 else mx.concatenate(parts)


def put(stored: mx.array, places: mx.array, rows: mx.array) -> mx.array:
    """`stored` [a, b, c, ...] with `rows` at `places` of its first three axes taken as one."""
    width = stored.shape[3:]
    flat = stored.reshape(-1, *width)
    flat[places] = rows.reshape(-1, *width)
    return flat.reshape(stored.shape)


def cleared(value: mx.array, mask: mx.array) -> mx.array:
    """value [B, G, S, D] with 0 where `mask` [B, 1, L, S] lets no row look.

    A masked value has weight 0, and 0 times infinity is no number.
    """
    return mx.where(mask[:, :, -1, :, None], value, mx.zeros((), value.dtype))


def _slot_places(slots: mx.array, groups: int, size: int) -> tuple[mx.array, mx.array]:
    """The slots, and where their rows lie in a pool [blocks, G, block size] as one axis, [T * G].

    NumPy counts them: slots come from Python, and a GPU would start seven operators.
    """
    blocks, tokens = np.divmod(np.array(slots), size)
    places = (blocks[:, None] * groups + np.arange(groups)) * size + tokens[:, None]
    return slots, mx.array(places.astype(np.uint32).reshape(-1))


def _segments(
    starts: Sequence[int], lengths: Sequence[int], tables: mx.array, groups: int, size: int
) -> tuple[mx.array, list[_Segment]]:
    """The tables, and the rows of a step in the order they have."""
    segments, numbers = [], np.array(tables)
    counts = [end - start for start, end in pairwise(starts)]
    for is_single, members in groupby(range(len(counts)), key=lambda r: counts[r] == 1):
        run = list(members)
        for together in [run] if is_single else [[r] for r in run]:
            first, end = together[0], together[-1] + 1
            seen = list(lengths[first:end])
            used = -(-max(seen) // size)
            blocks = numbers[first:end, None, :used] * groups + np.arange(groups)[:, None]
            mask = None
            if is_single and any(length != used * size for length in seen):
                mask = mx.arange(used * size) < mx.array(seen, mx.int32)[:, None, None, None]
            rows = slice(starts[first], starts[end])
            length = None if is_single else seen[0]
            segments.append(_Segment(rows, mx.array(blocks.astype(np.uint32)), length, mask))
    return tables, segments


def _gathered(pool: mx.array, scales: mx.array | None, part: _Segment, dtype: mx.Dtype) -> mx.array:
    """The stored tokens of a segment's requests one behind the other, [requests, G, S, D]."""
    found = mx.take(pool.reshape(-1, *pool.shape[2:]), part.blocks, axis=0)
    if scales is not None:
        factors = mx.take(scales.reshape(-1, scales.shape[2]), part.blocks, axis=0)
        found = _dequantized(found, factors).astype(dtype)
    rows = found.reshape(*found.shape[:2], -1, found.shape[-1])
    return rows if part.length is None else rows[:, :, : part.length]


@mx.compile
def _dequantized(numbers: mx.array, scales: mx.array) -> mx.array:
    return numbers.astype(mx.float32) * scales[..., None]
