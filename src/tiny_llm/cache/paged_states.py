"""The memory of a hybrid model in an engine: blocks for keys and values, and a state for each sequence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx

from tiny_llm_lab.types import DeltaRule, DeltaState, Memory, ModelConfig
from tiny_llm_lab.types.computing.hybrid import HybridConfig
from tiny_llm_lab.types.computing.layer_stack import StackStep

from .paged_kv_cache import PagedKvCache
from .step_layout import StepLayout


class Piece(NamedTuple):
    """Rows of a request up to where a snapshot is kept, or to its last row."""

    request: int
    start: int
    end: int
    snapshot: int  # after these rows; -1: none


@dataclass(frozen=True)
class Moment:
    """A step of one sequence, to be done again up to any of its tokens: the state before, and the inputs.

    This reads no weights but those of the rule, and gives the state to the bit if the rule has one order.
    """

    rule: DeltaRule
    rows: Sequence[mx.array]  # [n, ...]
    before: DeltaState

    def state_after(self, num_tokens: int) -> DeltaState:
        """The state after the first `num_tokens` of the step's tokens."""
        raise NotImplementedError("task 4.4.5")


class LayerStates:
    """The states of one layer, by number: those of slots and of snapshots. A step makes new ones."""

    def __init__(self) -> None:
        """Nothing is stored. Sets states = {}, the `DeltaState` of each number: a slot is no snapshot too."""
        raise NotImplementedError("task 4.4.1")


class HybridKvCache(PagedKvCache):
    """A `PagedKvCache` of the layers with attention, and the states of the others by state slot."""

    def __init__(
        self,
        config: ModelConfig,
        hybrid: HybridConfig,
        num_blocks: int,
        block_size: int,
        dtype: mx.Dtype,
        kv_bits: int | None,
    ) -> None:
        """As `PagedKvCache`. Sets states: one `LayerStates` for each layer that has them."""
        raise NotImplementedError("task 4.4.1")

    @property
    def pools(self) -> list[mx.array]:
        """As in `PagedKvCache`, and the states that the last step made."""
        raise NotImplementedError("task 4.4.1")

    def begin_step(self, layout: StepLayout) -> Sequence[Memory]:
        """As in `PagedKvCache`, with a `StateLayer` for each layer that has a state.

        Raises ValueError also for a request whose state has not seen exactly the tokens before its rows.
        """
        raise NotImplementedError("task 4.4.1")

    def cut_back(self, state_slot: int, num_tokens: int) -> None:
        """After a step with a draft: take a slot's states back to the first `num_tokens` tokens."""
        raise NotImplementedError("task 4.4.5")

    def release(self) -> None:
        """As in `PagedKvCache`."""
        raise NotImplementedError("task 4.4.1")


@dataclass(eq=False)
class StateLayer(Memory):
    """The states of one layer in one step of packed rows [T, 1]."""

    states: LayerStates
    layout: StepLayout
    hybrid: HybridConfig
    turns: Sequence[Sequence[Piece]]  # the rows of all requests, in the order in which they are computed

    def offsets(self, num_rows: int) -> list[int]:
        """The positions [T] of the rows, whatever `num_rows` is."""
        raise NotImplementedError("task 4.4.1")

    def update(
        self, rule: DeltaRule, rows: Sequence[mx.array], num_rows: int, num_new_tokens: int
    ) -> mx.array:
        """Run `rule` over the rows [T, ...] of all requests from their states on, and keep the new ones.

        A request without tokens before its rows starts from zeros. Keeps snapshots, copies that keep no
        other request's state in memory, and what drafts need, as the layout says. The row counts B and L are
        not read.
        """
        raise NotImplementedError("task 4.4.1")

    def enter(self, step: StackStep) -> bool:
        """See `Memory`: False if the step keeps a state within it, or one for a draft."""
        raise NotImplementedError("task 4.4.1")

    def leave(self, step: StackStep) -> None:
        """See `Memory`: the new states go into the slots."""
        raise NotImplementedError("task 4.4.1")
