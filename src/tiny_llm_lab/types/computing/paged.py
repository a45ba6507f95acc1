"""Keys and values in blocks: what a step of packed rows needs of them."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import mlx.core as mx


class Slice(NamedTuple):
    """What a step computes of one request: `num_new` tokens behind the `num_computed` first ones."""

    block_ids: Sequence[int]  # where its keys and values are: those of token t in block t // block_size
    num_computed: int
    num_new: int
    state_slot: int = 0  # where its states are, if the model has any


class StepLayout(Protocol):
    """Which of R requests each of a step's T rows belongs to, and where keys and values are stored.

    positions [T]: tokens of the same request before the row. query_starts [R + 1]: the first row of each
    request, and T. lengths [R]: stored tokens, those of this step included. slots [T] int32: block *
    block_size + place in the block. block_tables [R, longest] int32: the blocks of each request.
    state_slots [R]: which of the states of a hybrid model are a request's.
    """

    @property
    def positions(self) -> list[int]: ...
    @property
    def query_starts(self) -> list[int]: ...
    @property
    def lengths(self) -> list[int]: ...
    @property
    def slots(self) -> mx.array: ...
    @property
    def block_tables(self) -> mx.array: ...
    @property
    def state_slots(self) -> list[int]: ...


class PagedLayer(Protocol):
    """The blocks of one layer in one step."""

    def offsets(self, num_rows: int) -> list[int]:
        """The positions [T] of the rows."""
        ...

    def attention_mask(self, num_new_tokens: int) -> Literal["causal"]:
        """The rows' mask, which `attend` applies."""
        ...

    def attend(self, q: mx.array, k: mx.array, v: mx.array, scale: float | None = None) -> mx.array:
        """Store k, v [T, G, 1, D]; attend with q [T, H, 1, D] -> [T, 1, H * D]."""
        ...


class PagedCache(Protocol):
    """The keys and values of all layers and requests, in `num_blocks` blocks of `block_size` tokens."""

    num_blocks: int
    block_size: int

    @property
    def keys(self) -> list[mx.array]:
        """One a layer: [num_blocks, G, block_size, D]; so have the values."""
        ...

    @property
    def values(self) -> list[mx.array]: ...

    @property
    def key_scales(self) -> list[mx.array]:
        """Empty unless keys and values have 8 bits: [num_blocks, G, block_size]."""
        ...

    @property
    def value_scales(self) -> list[mx.array]: ...

    @property
    def pools(self) -> list[mx.array]:
        """All that is stored: what has to be computed when a step ends."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of all pools."""
        ...

    def begin_step(self, layout: StepLayout) -> Sequence[PagedLayer]:
        """One cache per layer for the forward pass over the rows of `layout`."""
        ...

    def materialize(self) -> None:
        """Compute what is still lazy."""
        ...

    def release(self) -> None:
        """Give the memory back."""
        ...
