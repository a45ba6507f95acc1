"""A package's own Metal kernel for decodes, and the steps in which it is used."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import mlx.core as mx

# Timed with so many rows, used with those in words, and with no other head dimensions.
TIMED: Final = {1: "1 to 7", 8: "8 to 63", 64: "64 or more"}
DIMS: Final = (64, 80, 128)


class PagedRows(Protocol):
    """`paged_attention_metal` of a package."""

    def __call__(
        self,
        query: mx.array,
        keys: mx.array,
        values: mx.array,
        tables: mx.array,
        owners: mx.array,
        visible: mx.array,
        scale: float | None = None,
    ) -> mx.array:
        """query [T, H, 1, D] over keys, values [blocks, G, block size, D] -> [T, 1, H * D].

        Row t attends to the first visible[t] tokens in the blocks tables[owners[t]]. All three are int32;
        owners and visible may have more than T elements, tables more columns than blocks.
        """
        ...


@dataclass(frozen=True)
class DecodeKernel:
    """A kernel, and those numbers of TIMED with which it was faster on this device than gathering blocks.

    They are asked for when a step could use it, and then found if they are not known.
    """

    call: PagedRows
    faster_with: Callable[[], Sequence[int]]

    def takes(self, query: mx.array, pool: mx.array) -> bool:
        """Whether the kernel computes the decodes query [T, H, 1, D] over `pool`."""
        timed = list(TIMED)[bisect_right(list(TIMED), query.shape[0]) - 1]
        is_tested = pool.shape[-1] in DIMS and pool.dtype == query.dtype  # so it is not of 8 bits
        return is_tested and timed in self.faster_with()
