"""Paged attention: each request reads its own blocks of a pool (arXiv 2309.06180, section 4.1)."""

from dataclasses import dataclass
from typing import Literal

import mlx.core as mx

from tiny_llm_lab.types import KernelOps, KvStorage
from tiny_llm_lab.types.computing.paged import PagedCache, StepLayout

from .storage import ARRAYS


@dataclass(eq=False)
class PagedAttention:
    """Attention of the rows of one layout over pools of blocks.

    All layers of a step share one object, so what depends only on the layout is computed once.
    """

    layout: StepLayout

    def __call__(
        self,
        q: mx.array,
        keys: mx.array,
        values: mx.array,
        scale: float | None = None,
        kv_scales: tuple[mx.array, mx.array] | None = None,
    ) -> mx.array:
        """q [T, H, 1, D] over keys and values [num_blocks, G, block_size, D] -> [T, 1, H * D] in q's dtype.

        A row attends to the stored tokens of its own request up to itself, and to nothing else in the
        blocks. `scale` None means 1 / sqrt(D). Pools of int8 (from task 3.2.5 on) come with `kv_scales`:
        the scales of the keys and the scales of the values, [num_blocks, G, block_size] float32 each.
        """
        raise NotImplementedError("task 3.2.1")


@dataclass(eq=False)
class OpsPagedAttention:
    """Computes what `PagedAttention` computes, on a model's operators."""

    layout: StepLayout
    ops: KernelOps

    def __call__(
        self,
        q: mx.array,
        keys: mx.array,
        values: mx.array,
        scale: float | None = None,
        kv_scales: tuple[mx.array, mx.array] | None = None,
    ) -> mx.array:
        """Like `PagedAttention`."""
        raise NotImplementedError("task 3.2.1")


@dataclass(eq=False)
class PagedLayer:
    """The pools of one layer in one step."""

    cache: PagedCache
    index: int  # the layer's number
    layout: StepLayout
    attention: PagedAttention | OpsPagedAttention  # of `layout`
    storage: KvStorage = ARRAYS

    def offsets(self, num_rows: int) -> list[int]:
        """Returns the positions [T] of the rows, whatever `num_rows` is."""
        raise NotImplementedError("task 3.2.1")

    def attention_mask(self, num_new_tokens: int) -> Literal["causal"]:
        """Returns "causal": `attend` masks the tokens after a row's own."""
        raise NotImplementedError("task 3.2.1")

    def attend(self, q: mx.array, k: mx.array, v: mx.array, scale: float | None = None) -> mx.array:
        """Store k, v [T, G, 1, D] in the rows' slots, in place; attend with q [T, H, 1, D] -> [T, 1, H * D].

        A row attends to its own request's tokens up to itself. `scale` None means 1 / sqrt(D).
        """
        raise NotImplementedError("task 3.2.1")
