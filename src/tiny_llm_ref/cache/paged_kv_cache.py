"""Keys and values in the blocks of a pool (PagedAttention, Kwon et al. 2023, arXiv 2309.06180)."""

from collections.abc import Sequence
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import Memory, ModelConfig, UserError

from .paged_attention import PagedLayer
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
        if kv_bits not in (None, 8):
            raise UserError(f"kv_bits must be 8, or None for the model's own dtype, not {kv_bits}")
        self.num_blocks, self.block_size = num_blocks, block_size
        shape = (num_blocks, config.num_key_value_heads, block_size, config.head_dim)
        layers = range(config.num_kv_layers)
        self.keys, self.values = (
            [mx.zeros(shape, mx.int8 if kv_bits else dtype) for _ in layers] for _ in "kv"
        )
        self.key_scales, self.value_scales = ([mx.zeros(shape[:3]) for _ in layers if kv_bits] for _ in "kv")
        self.materialize()

    @property
    def pools(self) -> list[mx.array]:
        """The stored arrays of all layers, which must be computed when a step ends."""
        return [*self.keys, *self.values, *self.key_scales, *self.value_scales]

    @property
    def nbytes(self) -> int:
        """The size in bytes of the pools of all layers, scales included."""
        return sum(pool.nbytes for pool in self.pools)

    def begin_step(self, layout: StepLayout) -> Sequence[Memory]:
        """Returns a `PagedLayer` per layer for `model(tokens [T, 1], layout.positions, layers, wanted=...)`.

        Sets layout. Raises ValueError if the layout names a block or a slot that the pool does not have, and
        after `release`.
        """
        self._require(layout)
        self.layout = layout
        return [PagedLayer(self, i, layout) for i in range(len(self.keys))]

    def cut_back(self, state_slot: int, num_tokens: int) -> None:
        """Does nothing: the next tokens overwrite what rejected ones stored (from task 4.4.5 on)."""

    def materialize(self) -> None:
        """Compute what is still lazy, so that no graph lives longer than the step that built it."""
        mx.eval(self.pools)

    def release(self) -> None:
        """Free the memory. After this no step can begin."""
        self.keys, self.values, self.key_scales, self.value_scales = [], [], [], []

    def _require(self, layout: StepLayout) -> None:
        if not self.keys:
            raise ValueError("the cache has been released")
        slots = cast(list[int], layout.slots.tolist())
        # Without the zeros behind each request's own: one long request makes all tables long.
        width, size = layout.block_tables.shape[1], self.block_size
        tables = memoryview(cast(bytes, layout.block_tables)).cast("B").cast("i") if width else ()
        spans = ((r * width, -(-length // size)) for r, length in enumerate(layout.lengths))
        blocks = [block for start, count in spans for block in tables[start : start + count]]
        for what, numbers, count in (
            ("slots", slots, self.num_blocks * self.block_size),
            ("blocks", blocks, self.num_blocks),
        ):
            if numbers and not 0 <= min(numbers) <= max(numbers) < count:
                raise ValueError(f"{what} must be 0 to {count - 1}, not {min(numbers)} to {max(numbers)}")
