"""Blocks of an engine's memory as bytes, and back. On the engine's thread, between two steps."""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tiny_llm_lab.runtime.growing_pool import GrowingPool
from tiny_llm_lab.serving.prefix_disk.folder import Bytes
from tiny_llm_lab.types.computing.paged import PagedCache

if TYPE_CHECKING:
    from tiny_llm_ref.cache.paged_states import HybridKvCache


class KvRows:
    """Rows of bytes: a block's keys, values and scales of all layers, or the states of a snapshot."""

    def __init__(
        self, caches: Sequence[PagedCache], growing: Sequence[GrowingPool], marks: bytearray
    ) -> None:
        """Sets block_bytes, state_bytes (0 without states) and shape, which says what the bytes mean.

        `caches` are the model's and, if it has one, the draft model's; `growing` has those of them that grow.
        `marks` says of each block whether the draft model's part is there: the last byte of a row.
        """
        self._caches, self._growing, self._marks = caches, growing, marks
        stored = [each.stored if isinstance(each, GrowingPool) else each for each in caches]
        self._hybrids = [cast("HybridKvCache", each) for each in stored if hasattr(each, "hybrid")]
        self._sizes = [pool.nbytes // len(pool) for pool in self._pools()]
        self.block_bytes = sum(self._sizes) + bool(marks)
        self.state_bytes = sum(each.hybrid.state_bytes for each in self._hybrids)
        self.shape = repr([(pool.shape[1:], pool.dtype) for pool in self._pools()])

    def copy(self, blocks: Sequence[int]) -> list[Bytes]:
        """What the blocks store."""
        rows, numbers = np.empty((len(blocks), self.block_bytes), np.uint8), list(blocks)
        rows[:, sum(self._sizes) :] = [[*self._marks[block : block + 1]] for block in blocks]
        for pool, (start, end) in self._parts(blocks):
            found = _bytes_of(pool)[numbers] if is_in_reach() else _bytes_of(pool[mx.array(numbers)])
            rows[:, start:end] = found
        return [row.data for row in rows]

    def put(self, blocks: Sequence[int], rows: Sequence[Bytes]) -> None:
        """Store these rows in the blocks."""
        whole, numbers = [np.frombuffer(row, np.uint8) for row in rows], list(blocks)
        for block, row in zip(blocks if self._marks else (), whole, strict=False):
            self._marks[block] = row[-1]
        for pool, (start, end) in self._parts(blocks):
            parts = [row[start:end] for row in whole]
            if is_in_reach():
                _bytes_of(pool)[numbers] = parts
            else:
                stored = mx.array(np.stack(parts)).view(pool.dtype)
                pool[mx.array(numbers)] = stored.reshape(-1, *pool.shape[1:])

    def copy_states(self, number: int) -> Bytes:
        """The states of a snapshot."""
        layers = [layer for cache in self._hybrids for layer in cache.states]
        parts = [np.array(part, copy=False).reshape(-1) for layer in layers for part in layer.states[number]]
        whole: NDArray[np.float32] = np.concatenate(parts)
        return whole.data.cast("B")

    def put_states(self, number: int, num_tokens: int, row: Bytes) -> None:
        """Make these states a snapshot, after `num_tokens` tokens."""
        numbers, at = np.frombuffer(row, np.float32), 0
        for cache in self._hybrids:
            sizes = cache.hybrid.delta_net
            for layer in cache.states:
                parts = []
                for shape in (sizes.tail_shape, sizes.state_shape):
                    size = int(np.prod(shape))
                    parts.append(mx.array(numbers[at : at + size].reshape(shape)))
                    at += size
                layer.states[number] = parts[0], parts[1]
            cache.seen[number] = num_tokens

    def _pools(self) -> list[mx.array]:
        return [
            pool
            for cache in self._caches
            for pool in (*cache.keys, *cache.values, *cache.key_scales, *cache.value_scales)
        ]

    def _parts(self, blocks: Sequence[int]) -> Iterable[tuple[mx.array, tuple[int, int]]]:
        """Each pool, with memory for `blocks`, and its span of a row."""
        for growing in self._growing:
            growing.reach(max(blocks) + 1)
        return zip(self._pools(), pairwise(accumulate(self._sizes, initial=0)), strict=True)


def is_in_reach() -> bool:
    """Whether Python may write into the pools; elsewhere only the device should."""
    return mx.default_device() == mx.cpu


def _bytes_of(pool: mx.array) -> NDArray[np.uint8]:
    """The bytes of each block, in the array's own memory. Let go of it before the next step."""
    return np.array(pool.view(mx.uint8), copy=False).reshape(len(pool), -1)
