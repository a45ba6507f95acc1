"""How keys and values get into storage: by assignment to plain arrays, or by a model's operators."""

from collections.abc import Sequence
from typing import Final

import mlx.core as mx

from tiny_llm_lab.types import KvStorage


class ArrayStorage:
    """`KvStorage` on plain arrays, which are written in place."""

    has_free_rows = False

    def append(self, stored: mx.array, added: mx.array, offsets: Sequence[int]) -> mx.array:
        """stored [R, G, room, D] with added [B, G, L, D] in its first B rows, from offsets[b] on.

        Writes into `stored` and returns it. All offsets are equal.
        """
        raise NotImplementedError("task 2.1.1")

    def grow(self, stored: mx.array, rows: int, room: int, used: Sequence[int]) -> mx.array:
        """New storage [rows, G, room, D] of stored's dtype, with the first used[b] tokens of its row b.

        All numbers of `used` may be 0: then only the shape and dtype of `stored` count.
        """
        raise NotImplementedError("task 2.1.1")

    def append_rows(self, stored: mx.array, added: mx.array, slots: mx.array) -> mx.array:
        """The pool stored [blocks, G, block_size, D] with row t of added [T, G, 1, D] in slots[t] (int32).

        Slot block * block_size + place. Writes into `stored` and returns it.
        """
        raise NotImplementedError("task 3.2.1")

    def quantize_rows(self, x: mx.array) -> Sequence[mx.array]:
        """As the function `quantize_rows`."""
        raise NotImplementedError("task 3.2.5")


ARRAYS: Final[KvStorage] = ArrayStorage()
