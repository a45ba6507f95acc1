"""How keys and values are written to storage: with plain arrays here, or with a model's operators."""

from collections.abc import Sequence
from typing import Final

import mlx.core as mx

from tiny_llm_lab.types import KvStorage


class ArrayStorage:
    """`KvStorage` on plain arrays, written in place."""

    has_free_rows = False

    def append(self, stored: mx.array, added: mx.array, offsets: Sequence[int]) -> mx.array:
        """Write added [B, G, L, D] into the first B rows of stored [R, G, room, D], starting at offsets[b].

        Writes in place and returns `stored`. All offsets are equal.
        """
        raise NotImplementedError("task 2.1.1")

    def grow(self, stored: mx.array, rows: int, room: int, used: Sequence[int]) -> mx.array:
        """Returns new storage [rows, G, room, D] of stored's dtype, with the first used[b] tokens of row b.

        If all numbers in `used` are 0, only the shape and dtype of `stored` matter.
        """
        raise NotImplementedError("task 2.1.1")

    def append_rows(self, stored: mx.array, added: mx.array, slots: mx.array) -> mx.array:
        """Write row t of added [T, G, 1, D] into slot slots[t] (int32) of stored [blocks, G, block_size, D].

        A slot is block * block_size + place. Writes in place and returns `stored`.
        """
        raise NotImplementedError("task 3.2.1")

    def quantize_rows(self, x: mx.array) -> Sequence[mx.array]:
        """Like the function `quantize_rows`."""
        raise NotImplementedError("task 3.2.5")


ARRAYS: Final[KvStorage] = ArrayStorage()
