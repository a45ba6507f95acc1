"""Keys and values in blocks: what a step of packed rows needs to know about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

import mlx.core as mx

from tiny_llm_lab.types.computing.pictures import NO_PICTURES, NoPictures

if TYPE_CHECKING:  # a memory knows the layouts of steps
    from tiny_llm_lab.types.computing.memory import Memory
    from tiny_llm_ref.cache.step_layout import StepLayout as _StepLayout

StepLayout: TypeAlias = "_StepLayout"


@dataclass(frozen=True)
class StateUse:
    """What a step does with the states of one request, if the model has any."""

    slot: int = -1  # where they are after the step; -1: the request does not run
    snapshot: int = -1  # go on from it; -1: go on from the slot, or from zeros without tokens before
    # Keep the states after so many tokens of the request as this snapshot: (tokens, snapshot), tokens rising.
    kept: tuple[tuple[int, int], ...] = ()
    num_drafted: int = 0  # of the request's rows, the last ones: the states may be cut back to before them


NOT_RUNNING: Final = StateUse()
FIRST_SLOT: Final = StateUse(0)


class Slice(NamedTuple):
    """What a step computes of one request: `num_new` tokens after its first `num_computed` tokens."""

    block_ids: Sequence[int]  # where its keys and values are; token t is in block t // block_size
    num_computed: int
    num_new: int
    states: StateUse = FIRST_SLOT
    pictures: NoPictures = NO_PICTURES


class PagedCache(Protocol):
    """The keys and values of all layers and requests, in `num_blocks` blocks of `block_size` tokens."""

    num_blocks: int
    block_size: int

    @property
    def keys(self) -> list[mx.array]:
        """One array per layer, [num_blocks, G, block_size, D], like the values."""

    @property
    def values(self) -> list[mx.array]: ...

    @property
    def key_scales(self) -> list[mx.array]:
        """One array per layer, [num_blocks, G, block_size]; empty unless keys and values have 8 bits."""

    @property
    def value_scales(self) -> list[mx.array]: ...

    @property
    def pools(self) -> list[mx.array]:
        """All stored arrays, which must be computed when a step ends."""

    @property
    def nbytes(self) -> int:
        """The size in bytes of all pools."""

    def begin_step(self, layout: StepLayout) -> Sequence[Memory]:
        """Returns one memory per layer for the forward pass over the rows of `layout`."""

    def cut_back(self, state_slot: int, num_tokens: int) -> None:
        """Take the states of a slot back to the first `num_tokens` tokens after a step with a draft."""

    def materialize(self) -> None:
        """Compute what is still lazy."""

    def release(self) -> None:
        """Free the memory."""
