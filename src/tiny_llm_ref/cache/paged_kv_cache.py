"""Keys and values in pages, the blocks of a pool (PagedAttention, Kwon et al. 2023, arXiv 2309.06180)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import ModelConfig, UserError

from .paged_attention import PagedAttention, PagedLayer


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
        positions: list[int] = []
        slots: list[int] = []
        starts, lengths, tables = [0], [], []
        for block_ids, computed, new in parts:
            length = computed + new
            used = -(-length // block_size)
            if computed < 0 or new < 1 or used > len(block_ids):
                raise ValueError(
                    f"{len(block_ids)} blocks of {block_size} cannot take {new} tokens behind {computed}"
                )
            places = range(computed, length)
            positions += places
            slots += [block_ids[t // block_size] * block_size + t % block_size for t in places]
            starts.append(len(positions))
            lengths.append(length)
            tables.append(list(block_ids[:used]))
        return cls(positions, starts, lengths, mx.array(slots, mx.int32), _padded(tables))


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
        if kv_bits not in (None, 8):
            raise UserError(f"keys and values have 8 bits or, with None, those of the model: not {kv_bits}")
        self.num_blocks, self.block_size = num_blocks, block_size
        shape = (num_blocks, config.num_key_value_heads, block_size, config.head_dim)
        layers = range(config.num_hidden_layers)
        self.keys, self.values = (
            [mx.zeros(shape, mx.int8 if kv_bits else dtype) for _ in layers] for _ in "kv"
        )
        self.key_scales, self.value_scales = ([mx.zeros(shape[:3]) for _ in layers if kv_bits] for _ in "kv")
        self.materialize()

    @property
    def pools(self) -> list[mx.array]:
        """All that is stored, of all layers: what has to be computed when a step ends."""
        return [*self.keys, *self.values, *self.key_scales, *self.value_scales]

    @property
    def nbytes(self) -> int:
        """Bytes of the pools of all layers, scales included."""
        return sum(pool.nbytes for pool in self.pools)

    def begin_step(self, layout: StepLayout) -> list[PagedLayer]:
        """One cache per layer for `model(tokens [T, 1], layout.positions, layers, rows=...)`.

        Raises ValueError when the layout names a block or a slot that the pool does not have.
        """
        self._require(layout)
        attention = PagedAttention(layout)
        return [PagedLayer(self, i, layout, attention) for i in range(len(self.keys))]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy block `source` over block `target` in every layer, for all pairs (source, target) at once.

        Raises ValueError when there is no such block, or when two pairs have the same target.
        """
        sources, targets = ([pair[i] for pair in pairs] for i in (0, 1))
        if not all(0 <= block < self.num_blocks for block in (*sources, *targets)):
            raise ValueError(f"blocks are numbered 0 to {self.num_blocks - 1}: {pairs}")
        if len(set(targets)) < len(targets):
            raise ValueError(f"two copies into the same block: {pairs}")
        if not pairs:
            return
        where, to = mx.array(sources, mx.int32), mx.array(targets, mx.int32)
        for pool in self.pools:
            # A copy that is still lazy would read the pool, and a pool with a reader is not changed in place.
            copies = pool[where]
            mx.eval(copies)
            pool[to] = copies
        self.materialize()

    def materialize(self) -> None:
        """Compute what is still lazy, so that no graph outlives the step that built it."""
        mx.eval(self.pools)

    def release(self) -> None:
        """Give the memory back; no step can begin any more."""
        self.keys, self.values, self.key_scales, self.value_scales = [], [], [], []

    def _require(self, layout: StepLayout) -> None:
        if not self.keys:
            raise ValueError("the cache has been released")
        slots = cast(list[int], layout.slots.tolist())
        blocks = [block for table in cast(list[list[int]], layout.block_tables.tolist()) for block in table]
        for what, numbers, count in (
            ("slots", slots, self.num_blocks * self.block_size),
            ("blocks", blocks, self.num_blocks),
        ):
            if numbers and not 0 <= min(numbers) <= max(numbers) < count:
                raise ValueError(f"{what} lie in 0 to {count - 1}, not {min(numbers)} to {max(numbers)}")


def _padded(tables: list[list[int]]) -> mx.array:
    longest = max(map(len, tables), default=0)
    rows = [table + [0] * (longest - len(table)) for table in tables]
    return mx.array(rows, mx.int32).reshape(len(tables), longest)
