"""Metal kernels for decodes over blocks, and the steps in which one of them is used."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Final

import mlx.core as mx

from tiny_llm_lab.runtime.native.device.ladder import Cell, timed_for

# Timed with so many rows, and used with as many or more.
ROWS: Final = {1: 1, 8: 8, 64: 64}
# Timed with so many stored tokens, and used from the first number on, in the row that has most.
TOKENS: Final = {0: 512, 2_048: 4_096, 8_192: 16_384}
# We test no other head dimensions.
DIMS: Final = (64, 80, 128, 256)

# Timed rows and tokens.
CELLS: Final[Sequence[Cell]] = tuple(product(ROWS, TOKENS.values()))
# A kernel for rows of one token each: query [T, H, 1, D] over keys and values [blocks, G, block size, D],
# with tables, owners, visible, scale and longest -> [T, 1, H * D]. Row t attends to the first visible[t]
# tokens in the blocks tables[owners[t]]. All three are int32; owners and visible may have more than T
# elements, tables more columns than blocks. `longest` is the largest visible[t].
Decodes = Callable[[mx.array, mx.array, mx.array, mx.array, mx.array, mx.array, float, int], mx.array]


class DecodeKernel:
    """For each of CELLS the kernel that was fastest there, if one was faster than gathering blocks.

    They are asked for, with D = 128 or 256, when a step could use one, and then found if they are not known.
    """

    def __init__(self, find: Callable[[int], Mapping[Cell, Decodes]]) -> None:
        self._by_cell = cache(find)

    def chosen(self, query: mx.array, pool: mx.array, longest: int) -> Decodes | None:
        """The kernel for the decodes query [T, H, 1, D] over `pool`; None if blocks are gathered."""
        is_tested = pool.shape[-1] in DIMS and pool.dtype == query.dtype  # so it is not of 8 bits
        return self._by_cell(max(128, pool.shape[-1])).get(_cell(query, longest)) if is_tested else None


def always(kernel: Decodes) -> DecodeKernel:
    """The kernel in every cell."""
    return DecodeKernel(lambda dim: dict.fromkeys(CELLS, kernel))


def _cell(query: mx.array, longest: int) -> Cell:
    """The measured ratio for such a step."""
    return timed_for(ROWS, query.shape[0]), timed_for(TOKENS, longest)
