"""Metal kernels for decodes over blocks, and the steps in which one of them is used."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Final, TypeVar

import mlx.core as mx

# Timed with so many rows, and used with as many or more.
ROWS: Final = (1, 8, 64)
# Timed with so many stored tokens, and used from the first number on, in the row that has most.
TOKENS: Final = {0: 512, 2_048: 4_096, 8_192: 16_384}
# We test no other head dimensions.
DIMS: Final = (64, 80, 128, 256)

Cell = tuple[int, int]  # timed rows and tokens
CELLS: Final[Sequence[Cell]] = tuple(product(ROWS, TOKENS.values()))
# A kernel for rows of one token each: query [T, H, 1, D] over keys and values [blocks, G, block size, D],
# with tables, owners, visible, scale and longest -> [T, 1, H * D]. Row t attends to the first visible[t]
# tokens in the blocks tables[owners[t]]. All three are int32; owners and visible may have more than T
# elements, tables more columns than blocks. `longest` is the largest visible[t].
Decodes = Callable[[mx.array, mx.array, mx.array, mx.array, mx.array, mx.array, float, int], mx.array]

K = TypeVar("K")


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


def fastest(
    tried: Sequence[tuple[Sequence[float], K]], cells: Sequence[Cell] = CELLS, most: float = 1
) -> Mapping[Cell, K]:
    """For each cell the kernel with the least ratio there, the earlier one of equals.

    `tried` has these ratios in the order of `cells`, none for a kernel that is wrong. A cell in which none is
    below `most` is left out.
    """
    best: dict[Cell, tuple[float, K]] = {}
    for ratios, kernel in tried:
        for cell, ratio in zip(cells, ratios, strict=False):
            if ratio < (best[cell][0] if cell in best else most):
                best[cell] = ratio, kernel
    return {cell: kernel for cell, (_, kernel) in best.items()}


def _cell(query: mx.array, longest: int) -> Cell:
    """The measured ratio for such a step."""
    firsts = list(TOKENS)
    return (ROWS[bisect_right(ROWS, query.shape[0]) - 1], TOKENS[firsts[bisect_right(firsts, longest) - 1]])
