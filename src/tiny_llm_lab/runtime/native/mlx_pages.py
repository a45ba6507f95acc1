"""Keys and values in blocks of a pool, gathered for MLX's fused attention."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from typing import TypeVar, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from tiny_llm_lab.runtime.native.device.decode_kernel import DecodeKernel

Made = TypeVar("Made")
_LARGEST = 127  # of 8 bits: -128 has no opposite
# MLX passes smaller arrays in another address space, and compiles a kernel again whenever that changes.
_LEAST_SIZE = 8
_FEW_TOKENS = 4096  # which have 8 MiB in a layer of a 27B


class Kept:
    """What all layers of a step share: made again only if it differs from the last step's."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Hashable, object]] = {}

    def __call__(self, what: str, key: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` returns; called again only if `key` differs from the last call for `what`."""
        kept = self._kept.get(what)
        if kept is None or kept[0] != key:
            self._kept[what] = kept = (key, make())
        return cast(Made, kept[1])


# Attention of new tokens, q [B, H, L, D], the last of those in k and v [B, G, S, D], with a scale.
Chunk = Callable[[mx.array, mx.array, mx.array, float], mx.array]


@dataclass(frozen=True)
class _Piece:
    """Neighbours in a segment whose keys and values are gathered together."""

    rows: slice  # of the segment
    blocks: mx.array  # [requests, G, blocks] uint32: which of a pool's blocks * G pieces to gather
    length: int  # stored tokens of the request that has most
    mask: mx.array | None  # [requests, 1, 1, S] of single rows, None if they all see `length` tokens


@dataclass(frozen=True)
class _Segment:
    """Rows of a step that are computed alike: a chunk, or requests with a single row."""

    rows: slice
    is_chunk: bool
    length: int  # stored tokens of the request that has most
    pieces: Sequence[_Piece]
    tables: mx.array  # [requests, W] int32, as a kernel reads them, like the following
    owners: mx.array  # [>= requests] int32: the table of each row
    visible: mx.array  # [>= requests] int32: stored tokens


class MlxPages:
    """Storing in blocks, and attention over them."""

    def __init__(self, once: Kept, chunk: Chunk, kernel: DecodeKernel | None, reads_hidden: bool) -> None:
        """`once` keeps what all layers of a step share; `kernel` computes the decodes that it takes.

        `reads_hidden` as for `MlxOps`.
        """
        self._once, self._chunk, self._kernel = once, chunk, kernel
        self._reads_hidden = reads_hidden

    def append_rows(self, stored: mx.array, added: mx.array, slots: mx.array) -> mx.array:
        """See `KernelOps.append_rows`."""
        groups, size = stored.shape[1:3]
        # The array goes into what is kept: while it lives no other one has its id.
        make = partial(_slot_places, slots, groups, size)
        _, places, one = self._once("slots", (id(slots), groups, size), make)
        if one is None:
            return put(stored, places, added)
        block, token = one
        stored[block : block + 1, :, token : token + 1] = added
        return stored

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
        num_blocks, groups, size = key.shape[:3]
        make = partial(_segments, starts, lengths, tables, groups, size, num_blocks * size)
        step = (id(tables), tuple(starts), tuple(lengths), num_blocks, groups, size)
        segments = self._once("segments", step, make)[1]
        pools = list(zip((key, value), kv_scales or (None, None), strict=True))
        parts = [
            self._attended(query if len(segments) == 1 else query[part.rows], pools, part, scale)
            for part in segments
        ]
        if not parts:
            return query.reshape(0, 1, query.shape[1] * query.shape[3])
        return parts[0] if len(parts) == 1 else mx.concatenate(parts)

    def _attended(
        self, q: mx.array, pools: list[tuple[mx.array, mx.array | None]], part: _Segment, scale: float
    ) -> mx.array:
        """The rows q [T, H, 1, D] of one segment -> [T, 1, H * D]."""
        (keys, _), (values, _) = pools
        kernel = None
        if self._kernel is not None and not part.is_chunk:
            kernel = self._kernel.chosen(q, keys, part.length)
        if kernel is not None:
            return kernel(q, keys, values, part.tables, part.owners, part.visible, scale, part.length)
        if not part.is_chunk:
            outs = [self._decoded(q[each.rows], pools, each, scale) for each in part.pieces]
            return outs[0] if len(outs) == 1 else mx.concatenate(outs)
        k, v = (_gathered(pool, scales, part.pieces[0], q.dtype) for pool, scales in pools)
        return self._chunk(q.transpose(2, 1, 0, 3), k, v, scale).transpose(2, 0, 1, 3).flatten(2)

    def _decoded(
        self, q: mx.array, pools: list[tuple[mx.array, mx.array | None]], part: _Piece, scale: float
    ) -> mx.array:
        """The single rows q [T, H, 1, D] of one piece -> [T, 1, H * D]."""
        k, v = (_gathered(pool, scales, part, q.dtype) for pool, scales in pools)
        if part.mask is not None and self._reads_hidden:
            v = cleared(v, part.mask)
        out = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=part.mask)
        return out.transpose(0, 2, 1, 3).flatten(2)


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


def _slot_places(
    slots: mx.array, groups: int, size: int
) -> tuple[mx.array, mx.array, tuple[int, int] | None]:
    """The slots; where their rows lie in a pool [blocks, G, block size] as one axis, [T * G]; of one row its
    block and its place there, as an update of a slice is one operator and a scatter comes with four views.

    NumPy counts them: slots come from Python, and a GPU would start seven operators.
    """
    blocks, tokens = np.divmod(np.array(slots), size)
    places = (blocks[:, None] * groups + np.arange(groups)) * size + tokens[:, None]
    one = (int(blocks[0]), int(tokens[0])) if len(blocks) == 1 else None
    return slots, mx.array(places.astype(np.uint32).reshape(-1)), one


def _segments(
    starts: Sequence[int], lengths: Sequence[int], tables: mx.array, groups: int, size: int, room: int
) -> tuple[mx.array, list[_Segment]]:
    """The tables, and the rows of a step in the order they have; a pool has `room` tokens."""
    segments, numbers = [], np.array(tables)
    counts = [end - start for start, end in pairwise(starts)]
    for is_single, members in groupby(range(len(counts)), key=lambda r: counts[r] == 1):
        run = list(members)
        for together in [run] if is_single else [[r] for r in run]:
            first, end = together[0], together[-1] + 1
            seen = list(lengths[first:end])
            own = numbers[first:end, : -(-max(seen) // size)]
            rows = slice(starts[first], starts[end])
            pieces = [_piece(own, seen, part, groups, size) for part in _together(seen, room)]
            segments.append(_Segment(rows, not is_single, max(seen), pieces, *_for_kernel(own, seen)))
    return tables, segments


def _together(seen: Sequence[int], room: int) -> Iterator[slice]:
    """Yield slices of neighbouring requests to gather together; `seen` has each request's stored tokens.

    A gather pads each request to the longest. With padding it has at most twice the stored tokens and at most
    `room` tokens, for which the memory plan has space, unless it has few tokens or a single request.
    """
    first = total = longest = 0
    for i, length in enumerate(seen):
        total, longest = total + length, max(longest, length)
        if i > first and (i + 1 - first) * longest > max(_FEW_TOKENS, min(2 * total, room)):
            yield slice(first, i)
            first, total, longest = i, length, length
    yield slice(first, len(seen))


def _piece(tables: npt.NDArray[np.int32], seen: list[int], rows: slice, groups: int, size: int) -> _Piece:
    own, longest = seen[rows], max(seen[rows])
    blocks = tables[rows, None, : -(-longest // size)] * groups + np.arange(groups)[:, None]
    mask = None
    if min(own) < longest:
        mask = mx.arange(longest) < mx.array(own, mx.int32)[:, None, None, None]
    return _Piece(rows, mx.array(blocks.astype(np.uint32)), longest, mask)


def _for_kernel(tables: npt.NDArray[np.int32], seen: list[int]) -> tuple[mx.array, mx.array, mx.array]:
    """The tables of single rows, their owners and how many tokens they see, as a kernel reads them."""
    padding = max(0, _LEAST_SIZE - len(seen))
    if tables.size < _LEAST_SIZE:
        tables = np.pad(tables, [(0, 0), (0, _LEAST_SIZE)])
    return mx.array(tables), mx.arange(len(seen) + padding), mx.array([*seen, *[0] * padding], mx.int32)


def _gathered(pool: mx.array, scales: mx.array | None, part: _Piece, dtype: mx.Dtype) -> mx.array:
    """The stored tokens of a piece's requests one behind the other, [requests, G, S, D]."""
    result = mx.flatten(pool, 0, 1)[part.blocks]
    if scales is not None:
        result = _dequantized(result, mx.flatten(scales, 0, 1)[part.blocks]).astype(dtype)
    rows = mx.flatten(result, 2, 3)
    return rows[:, :, : part.length]


@mx.compile
def _dequantized(numbers: mx.array, scales: mx.array) -> mx.array:
    return numbers.astype(mx.float32) * scales[..., None]


@partial(mx.compile, shapeless=True)
def quantize_rows(x: mx.array) -> tuple[mx.array, mx.array]:
    """See `KernelOps.quantize_rows`."""
    x = x.astype(mx.float32)
    scales = mx.max(mx.abs(x), axis=-1, keepdims=True) / _LARGEST
    # Nothing is divided by the scale of zeros; that of a subnormal row is so coarse that 127 may be passed.
    numbers = mx.round(x / mx.where(scales > 0, scales, 1.0))
    return mx.clip(numbers, -_LARGEST, _LARGEST).astype(mx.int8), mx.squeeze(scales, -1)
