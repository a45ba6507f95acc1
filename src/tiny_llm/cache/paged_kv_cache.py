"""Keys and values in pages, the blocks of a pool (PagedAttention, Kwon et al. 2023, arXiv 2309.06180)."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from tiny_llm_lab.types import ModelConfig

from .paged_attention import PagedLayer


@dataclass(frozen=True, eq=False)
class StepLayout:
    """Whose the T rows of one step are, and where the keys and values of its R requests lie.

    Every row is one token. The rows of a request stand together: one in a decode, several in a chunk.
    """

    positions: list[int]  # [T] tokens of the same request before this row
    query_starts: list[int]  # [R + 1]: the rows of request r are query_starts[r] to query_starts[r + 1] - 1
    lengths: list[int]  # [R] stored tokens, those of this step included
    slots: mx.array  # [T] int32: where a row's keys and values go, block * block_size + place in the block
    block_tables: mx.array  # [R, longest] int32: the blocks of each request, with zeros behind the last

    @classmethod
    def of(cls, block_size: int, parts: Sequence[tuple[Sequence[int], int, int]]) -> "StepLayout":
        """The layout of requests (block_ids, num_computed_tokens, num_new_tokens), in the order of the rows.

        Token t of a request lies in its block t // block_size, at place t % block_size. Blocks behind the
        last token's are allowed and left out of the tables. Raises ValueError when the blocks of a request
        do not hold all its tokens, or when it has no new ones.
        """
        raise NotImplementedError("task 3.1.2")


class PagedKvCache:
    """The keys and values of every layer, for all requests: two pools of blocks a layer, allocated once.

    Which block is whose, and how many hold it, is not known here: the layout of a step says where to write
    and what to read.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int = 32,
        dtype: mx.Dtype = mx.float32,
        kv_bits: int | None = None,
    ) -> None:
        """keys[i] and values[i] of layer i: [num_blocks, G, block_size, D] of `dtype`, zeros.

        kv_bits=8 (from task 3.2.5 on) stores int8 instead, and key_scales[i] and value_scales[i] are
        [num_blocks, G, block_size] float32; with None both lists are empty. Raises UserError for other bits.
        """
        raise NotImplementedError("task 3.1.2")

    @property
    def pools(self) -> list[mx.array]:
        """All that is stored, of all layers: what has to be computed when a step ends."""
        raise NotImplementedError("task 3.1.2")

    @property
    def nbytes(self) -> int:
        """Bytes of the pools of all layers, scales included."""
        raise NotImplementedError("task 3.1.2")

    def begin_step(self, layout: StepLayout) -> list[PagedLayer]:
        """One cache per layer for `model(tokens [T, 1], layout.positions, layers, rows=...)`.

        Raises ValueError when the layout names a block or a slot that the pool does not have.
        """
        raise NotImplementedError("task 3.1.2")

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy block `source` over block `target` in every layer, for all pairs (source, target) at once.

        Raises ValueError when there is no such block, or when two pairs have the same target.
        """
        raise NotImplementedError("task 3.1.2")

    def materialize(self) -> None:
        """Compute what is still lazy, so that no graph outlives the step that built it."""
        raise NotImplementedError("task 3.1.2")

    def release(self) -> None:
        """Give the memory back; no step can begin any more."""
        raise NotImplementedError("task 3.1.2")
