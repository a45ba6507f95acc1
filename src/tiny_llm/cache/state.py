"""What a gated delta net remembers: a state of fixed size, however many tokens it has seen.

A state is a value. Whoever keeps a reference to one keeps that moment; a step returns new ones.
"""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import BatchKvCache, DeltaNetSizes, DeltaRule, DeltaState, Memory, RequestKvCache
from tiny_llm_lab.types.computing.layer_stack import StackStep


def no_state(sizes: DeltaNetSizes) -> DeltaState:
    """The state before the first token: zeros."""
    raise NotImplementedError("task 4.3.2")


class RowStates(Memory):
    """The states of one layer for some rows: what the memories of one request and of a batch share."""

    def __init__(self) -> None:
        """Sets states = [], later one for each row."""
        raise NotImplementedError("task 4.3.2")

    @property
    def nbytes(self) -> int:
        """Bytes of all states, 0 before the first token."""
        raise NotImplementedError("task 4.3.2")

    def update(
        self, rule: DeltaRule, rows: Sequence[mx.array], num_rows: int, num_new_tokens: int
    ) -> mx.array:
        """Run `rule` over [B * L, ...] inputs from the states on, and keep the new states: out [B * L, ...].

        Raises ValueError for another number of rows B than what is stored.
        """
        raise NotImplementedError("task 4.3.2")

    def enter(self, step: StackStep) -> bool:
        """See `Memory`: always True."""
        raise NotImplementedError("task 4.3.2")

    def leave(self, step: StackStep) -> None:
        """See `Memory`: take over the new states."""
        raise NotImplementedError("task 4.3.2")


class SequenceState(RowStates, RequestKvCache):
    """The states of one layer for rows that all have seen `offset` tokens."""

    def __init__(self, sizes: DeltaNetSizes) -> None:
        """As `RowStates`, with offset = 0. `sizes` are the layer's."""
        raise NotImplementedError("task 4.3.2")

    def offsets(self, num_rows: int) -> list[int]:
        """The tokens seen by each of `num_rows` rows: `offset` of each."""
        raise NotImplementedError("task 4.3.2")

    def for_batch(
        self, max_active_requests: int, max_seq_len: int | None, headroom: int = 0
    ) -> "BatchingState":
        """Returns an empty `BatchingState`: a state has one size, however long its text is."""
        raise NotImplementedError("task 4.3.2")

    def fetch(self) -> tuple[mx.array, mx.array]:
        """The states of all rows, [B, K - 1, C] and [B, Hv, Dk, Dv]. Raises ValueError if there are none."""
        raise NotImplementedError("task 4.3.2")

    def rewind(self, n: int) -> None:
        """Forget the last `n` tokens: all of them, or none.

        Raises ValueError ("cannot rewind") if fewer were seen or n is negative, and UserError ("cannot be cut
        back") for any other number.
        """
        raise NotImplementedError("task 4.3.2")

    def materialize(self) -> None:
        """Compute what is still lazy, so that no graph outlives the chunk that built it."""
        raise NotImplementedError("task 4.3.2")

    def release(self) -> None:
        """Give the memory back; no token has been seen afterwards."""
        raise NotImplementedError("task 4.3.2")


class BatchingState(RowStates, BatchKvCache):
    """The states of one layer for the active requests of a batch, row i of the i-th."""

    def __init__(self, max_active_requests: int) -> None:
        """As `RowStates`, without requests. Sets offset = [], a number of tokens for each row."""
        raise NotImplementedError("task 4.3.2")

    def reserve(self, num_tokens: int) -> None:
        """Nothing: a state does not grow with its tokens."""
        raise NotImplementedError("task 4.3.2")

    def add_request(self, prefilled: RequestKvCache) -> int:
        """Take a request's state into the next free row and return the row's number.

        Raises ValueError when every row is taken, or when `prefilled` is empty.
        """
        raise NotImplementedError("task 4.3.2")

    def remove_request(self, row: int) -> None:
        """Free `row`; the last active row moves into it and takes its number.

        Raises ValueError when there is no such row.
        """
        raise NotImplementedError("task 4.3.2")

    def offsets(self, num_rows: int) -> list[int]:
        """The tokens seen by each active row, whatever `num_rows` is."""
        raise NotImplementedError("task 4.3.2")

    def release(self) -> None:
        """Give the memory back and forget every request."""
        raise NotImplementedError("task 4.3.2")
