"""All layers of a model as one operator."""

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx

from tiny_llm_lab.types.computing.paged import PagedCache, StepLayout

Stored = tuple[mx.array, list[mx.array], list[mx.array]]  # x, and the storage of each layer's keys and values


class LayerStack(Protocol):
    """A model's layers in one operator, with the bits that the operators for one layer give.

    In the last layer only these `rows` of the batch go on, in their order (None = all), each with its last
    `kept` tokens. What was stored before ends: only what is returned may be read.
    """

    def over_rows(
        self,
        x: mx.array,
        offsets: int | list[int],
        keys: Sequence[mx.array],
        values: Sequence[mx.array],
        kept: int,
        rows: Sequence[int] | None,
    ) -> Stored | None:
        """x [B, L, E] behind the first offsets[b] tokens of the rows of storage [R, G, room, D], B <= R.

        Returns x [len(rows), kept, E] and the storage with the new tokens; None while what is stored is still
        being computed. Raises ValueError when a row has no room.
        """
        ...

    def over_new_rows(self, x: mx.array, kept: int, rows: Sequence[int] | None) -> Stored:
        """x [B, L, E] without tokens before them -> x [len(rows), kept, E] and new storage [B, G, room, D].

        There is room for L tokens or more. What lies behind them may be any number.
        """
        ...

    def over_pages(
        self, x: mx.array, cache: PagedCache, layout: StepLayout, kept: int, rows: Sequence[int] | None
    ) -> mx.array:
        """x [T, 1, E] of the packed rows of `layout` -> [len(rows), kept, E]; `cache` gets new pools."""
        ...
