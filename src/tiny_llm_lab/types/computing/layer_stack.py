"""All layers of a model as one operator."""

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx

from tiny_llm_lab.types.computing.paged import PagedCache, StepLayout
from tiny_llm_lab.types.computing.wanted import Wanted

Stored = tuple[mx.array, list[mx.array], list[mx.array]]  # x, and the storage of each layer's keys and values


class LayerStack(Protocol):
    """A model's layers in one operator, with the bits that the operators for one layer give.

    In the last layer only the rows and tokens of `wanted` go on, n tokens of each row. What was stored before
    ends: only what is returned may be read.
    """

    def over_rows(
        self,
        x: mx.array,
        offsets: Sequence[int],
        keys: Sequence[mx.array],
        values: Sequence[mx.array],
        wanted: Wanted,
    ) -> Stored | None:
        """x [B, L, E] behind the first offsets[b] tokens of the rows of storage [R, G, room, D], B <= R.

        Returns x [rows, n, E] and the storage with the new tokens; None while what is stored is still
        being computed. Raises ValueError when a row has no room.
        """
        ...

    def over_new_rows(self, x: mx.array, wanted: Wanted) -> Stored:
        """x [B, L, E] without tokens before them -> x [rows, n, E] and new storage [B, G, room, D].

        There is room for L tokens or more. What lies behind them may be any number.
        """
        ...

    def over_pages(self, x: mx.array, cache: PagedCache, layout: StepLayout, wanted: Wanted) -> mx.array:
        """x [T, 1, E] of the packed rows of `layout` -> [rows, n, E]; `cache` gets new pools."""
        ...
