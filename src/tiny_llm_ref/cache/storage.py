"""How keys and values are written to storage: with plain arrays here, or with a model's operators."""

from collections.abc import Sequence
from typing import Final

import mlx.core as mx

from tiny_llm_lab.types import KvStorage

from .kv_quantization import quantize_rows


class ArrayStorage:
    """`KvStorage` on plain arrays, written in place."""

    has_free_rows = False

    def append(self, stored: mx.array, added: mx.array, offsets: Sequence[int]) -> mx.array:
        """Write added [B, G, L, D] into the first B rows of stored [R, G, room, D], starting at offsets[b].

        Writes in place and returns `stored`. All offsets are equal.
        From task 2.6.1 on: every row has its own offset.
        """
        batch, _, new, _ = added.shape
        if min(offsets) == max(offsets):
            stored[:batch, :, offsets[0] : offsets[0] + new] = added
        else:
            rows = mx.array([[row] for row in range(batch)])
            columns = mx.array([[first + i for i in range(new)] for first in offsets])
            stored[rows, :, columns] = added.transpose(0, 2, 1, 3)
        return stored

    def grow(self, stored: mx.array, rows: int, room: int, used: Sequence[int]) -> mx.array:
        """Returns new storage [rows, G, room, D] of stored's dtype, with the first used[b] tokens of row b.

        If all numbers in `used` are 0, only the shape and dtype of `stored` matter.
        """
        _, groups, _, dim = stored.shape
        grown = mx.zeros((rows, groups, room, dim), stored.dtype)
        if max(used, default=0) > 0:
            old = slice(None, len(used)), slice(None), slice(None, max(used))
            grown[old] = stored[old]
        return grown

    def append_rows(self, stored: mx.array, added: mx.array, slots: mx.array) -> mx.array:
        """Write row t of added [T, G, 1, D] into slot slots[t] (int32) of stored [blocks, G, block_size, D].

        A slot is block * block_size + place. Writes in place and returns `stored`.
        From task 3.2.5 on: a pool of scales and its rows have no D axis.
        """
        blocks, places = mx.divmod(slots, stored.shape[2])
        stored[blocks, :, places] = added[:, :, 0]
        return stored

    def quantize_rows(self, x: mx.array) -> Sequence[mx.array]:
        """Like the function `quantize_rows`."""
        return quantize_rows(x)


ARRAYS: Final[KvStorage] = ArrayStorage()
