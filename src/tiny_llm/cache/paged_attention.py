"""Paged attention: each request reads its own blocks of a pool (arXiv 2309.06180, section 4.1)."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from tiny_llm_lab.types import KernelOps, Memory
from tiny_llm_lab.types.computing.layer_stack import StackStep
from tiny_llm_lab.types.computing.paged import PagedCache

from .step_layout import StepLayout


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
    raise NotImplementedError("task 3.2.1")


@dataclass(eq=False)
class PagedLayer(Memory):
    """The pools of one layer in one step."""

    cache: PagedCache
    index: int  # the layer's number
    layout: StepLayout

    def offsets(self, num_rows: int) -> list[int]:
        """Returns the positions [T] of the rows, whatever `num_rows` is."""
        raise NotImplementedError("task 3.2.1")

    def attend(self, ops: KernelOps, q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
        """Store k, v [T, G, 1, D] in the rows' slots, in place; attend with q [T, H, 1, D] -> [T, 1, H * D].

        A row attends to its own request's tokens up to itself. `ops` store and attend.
        """
        raise NotImplementedError("task 3.2.1")

    def enter(self, step: StackStep) -> bool:
        """See `Memory`: True for pools of the step's dtype, or of int8."""
        raise NotImplementedError("task 3.2.6")
