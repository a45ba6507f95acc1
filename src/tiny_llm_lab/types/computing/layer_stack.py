"""All layers of a model as one operator."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import mlx.core as mx

from tiny_llm_lab.types.computing.hybrid import DeltaState
from tiny_llm_lab.types.computing.paged import PagedCache, StepLayout
from tiny_llm_lab.types.computing.wanted import Wanted

Stored = tuple[mx.array, list[mx.array], list[mx.array]]  # x, and the storage of each layer's keys and values


@dataclass(frozen=True)
class StepStates:
    """The states of a step's requests in the layers with a gated delta net. A step puts new ones there."""

    layers: Sequence[list[DeltaState]] = ()  # by layer, a state a request
    starts: Sequence[int] = ()  # rows starts[r] to starts[r + 1] - 1 of all B * L are request r's


NO_STEP_STATES: Final = StepStates()  # of a model with attention alone


@dataclass(eq=False)
class StackStep:
    """A step of all layers in one operator: what their memories give it, and then what it leaves for them.

    The lists are in the order of the layers. A memory takes its entry out when it leaves.
    """

    x: mx.array  # [B, L, E]
    offsets: list[list[int]] = field(default_factory=list)  # of rows, by layer with attention
    keys: list[mx.array] = field(
        default_factory=list
    )  # storage [R, G, room, D], or of size 0 if there is none
    values: list[mx.array] = field(default_factory=list)
    pages: tuple[PagedCache, StepLayout] | None = None  # in place of rows
    states: list[list[DeltaState]] = field(default_factory=list)  # as in `StepStates`, like starts
    starts: Sequence[int] = ()  # () if every row has L tokens


class LayerStack(Protocol):
    """A model's layers in one operator. The results are bit for bit what the single operators compute.

    In the last layer only the rows and tokens of `wanted` continue, n tokens of each row. Don't read the
    storage that you passed after a call, only the storage that it returns. Of a hybrid, keys and values are
    those of the layers with attention.
    """

    def with_states(self, states: StepStates) -> "LayerStack":
        """The same layers for one call, which starts from `states` and puts new ones there."""

    def over_rows(
        self,
        x: mx.array,
        offsets: Sequence[int],
        keys: Sequence[mx.array],
        values: Sequence[mx.array],
        wanted: Wanted,
    ) -> Stored | None:
        """x [B, L, E] after the first offsets[b] tokens of the rows of storage [R, G, room, D], B <= R.

        Returns x [rows, n, E] and the storage with the new tokens, or None while the storage is still being
        computed. Raises ValueError if a row has no room.
        """

    def over_new_rows(self, x: mx.array, wanted: Wanted) -> Stored:
        """x [B, L, E] with no earlier tokens -> x [rows, n, E] and new storage [B, G, room, D].

        There is room for L tokens or more. After them there may be any number.
        """

    def over_pages(self, x: mx.array, cache: PagedCache, layout: StepLayout, wanted: Wanted) -> mx.array:
        """x [T, 1, E], the packed rows of `layout` -> [rows, n, E]; `cache` gets new pools."""
