"""Keys and values in pages, the blocks of a pool (PagedAttention, Kwon et al. 2023, arXiv 2309.06180)."""

import mlx.core as mx

from tiny_llm_lab.types import KernelOps, ModelConfig
from tiny_llm_lab.types.computing.paged import StepLayout

from .paged_attention import PagedLayer


class PagedKvCache:
    """The keys and values of every layer, for all requests: two pools of blocks a layer, allocated once.

    The layout of a step says where to write and what to read; holders of blocks are counted by `BlockPool`.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int = 16,
        dtype: mx.Dtype = mx.float32,
        kv_bits: int | None = None,
        ops: KernelOps | None = None,
    ) -> None:
        """keys[i] and values[i] of layer i: [num_blocks, G, block_size, D] of `dtype`, zeros.

        kv_bits=8 (from task 3.2.5 on) stores int8 instead, and key_scales[i] and value_scales[i] are
        [num_blocks, G, block_size] float32; with None both lists are empty. Raises UserError for other bits.
        `ops` are the model's operators, which then store and attend.
        """
        raise NotImplementedError("task 3.1.3")

    @property
    def pools(self) -> list[mx.array]:
        """All that is stored, of all layers: what has to be computed when a step ends."""
        raise NotImplementedError("task 3.1.3")

    @property
    def nbytes(self) -> int:
        """Bytes of the pools of all layers, scales included."""
        raise NotImplementedError("task 3.1.3")

    def begin_step(self, layout: StepLayout) -> list[PagedLayer]:
        """One cache per layer for `model(tokens [T, 1], layout.positions, layers, rows=...)`.

        Raises ValueError when the layout names a block or a slot that the pool does not have, and after
        `release`.
        """
        raise NotImplementedError("task 3.1.3")

    def materialize(self) -> None:
        """Compute what is still lazy, so that no graph outlives the step that built it."""
        raise NotImplementedError("task 3.1.3")

    def release(self) -> None:
        """Give the memory back; no step can begin any more."""
        raise NotImplementedError("task 3.1.3")
