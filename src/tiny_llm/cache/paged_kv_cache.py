"""Keys and values in the blocks of a pool (PagedAttention, Kwon et al. 2023, arXiv 2309.06180)."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import Memory, ModelConfig

from .step_layout import StepLayout


class PagedKvCache:
    """The keys and values of every layer, for all requests: two pools of blocks a layer, allocated once.

    The layout of a step says where to write and what to read. `BlockPool` counts the holders of blocks.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int = 16,
        dtype: mx.Dtype = mx.float32,
        kv_bits: int | None = None,
    ) -> None:
        """keys[i] and values[i] of layer i are [num_blocks, G, block_size, D] of `dtype`, all zeros.

        kv_bits=8 (from task 3.2.5 on) stores int8 instead, and key_scales[i] and value_scales[i] are
        [num_blocks, G, block_size] float32; with None both lists are empty. Raises UserError for other bits.
        """
        raise NotImplementedError("task 3.1.3")

    @property
    def pools(self) -> list[mx.array]:
        """The stored arrays of all layers, which must be computed when a step ends."""
        raise NotImplementedError("task 3.1.3")

    @property
    def nbytes(self) -> int:
        """The size in bytes of the pools of all layers, scales included."""
        raise NotImplementedError("task 3.1.3")

    def begin_step(self, layout: StepLayout) -> Sequence[Memory]:
        """Returns a `PagedLayer` per layer for `model(tokens [T, 1], layout.positions, layers, wanted=...)`.

        Sets layout. Raises ValueError if the layout names a block or a slot that the pool does not have, and
        after `release`.
        """
        raise NotImplementedError("task 3.1.3")

    def cut_back(self, state_slot: int, num_tokens: int) -> None:
        """Does nothing: the next tokens overwrite what rejected ones stored (from task 4.4.5 on)."""
        raise NotImplementedError("task 4.4.5")

    def materialize(self) -> None:
        """Compute what is still lazy, so that no graph lives longer than the step that built it."""
        raise NotImplementedError("task 3.1.3")

    def release(self) -> None:
        """Free the memory. After this no step can begin."""
        raise NotImplementedError("task 3.1.3")
