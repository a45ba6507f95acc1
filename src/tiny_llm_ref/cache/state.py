"""What a gated delta net remembers: a state of fixed size, however many tokens it has seen.

A state is a value. Whoever keeps a reference to one keeps that moment; a step returns new ones.
"""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import (
    BatchKvCache,
    DeltaNetSizes,
    DeltaRule,
    DeltaState,
    Memory,
    RequestKvCache,
    UserError,
)
from tiny_llm_lab.types.computing.layer_stack import StackStep


def no_state(sizes: DeltaNetSizes) -> DeltaState:
    """The state before the first token: zeros."""
    return mx.zeros(sizes.tail_shape), mx.zeros(sizes.state_shape)


class RowStates(Memory):
    """The states of one layer for some rows: what the memories of one request and of a batch share."""

    def __init__(self) -> None:
        """Sets states = [], later one for each row."""
        self.states: list[DeltaState] = []

    @property
    def nbytes(self) -> int:
        """Bytes of all states, 0 before the first token."""
        return sum(part.nbytes for state in self.states for part in state)

    def update(
        self, rule: DeltaRule, rows: Sequence[mx.array], num_rows: int, num_new_tokens: int
    ) -> mx.array:
        """Run `rule` over [B * L, ...] inputs from the states on, and keep the new states: out [B * L, ...].

        Raises ValueError for another number of rows B than what is stored.
        """
        before = self._before(num_rows)
        if len(before) != num_rows:
            raise ValueError(f"{num_rows} rows for {len(before)} states")
        out, self.states = rule(rows, before, [row * num_new_tokens for row in range(num_rows + 1)])
        self._count(num_new_tokens)
        return out

    def enter(self, step: StackStep) -> bool:
        """See `Memory`: always True."""
        step.states.append(self._before(len(step.x)))
        return True

    def leave(self, step: StackStep) -> None:
        """See `Memory`: take over the new states."""
        self.states = step.states.pop(0)
        self._count(step.x.shape[1])

    def _before(self, num_rows: int) -> list[DeltaState]:
        return list(self.states)

    def _count(self, num_tokens: int) -> None:
        """Every row has seen so many tokens more."""
        raise NotImplementedError


class SequenceState(RowStates, RequestKvCache):
    """The states of one layer for rows that all have seen `offset` tokens."""

    def __init__(self, sizes: DeltaNetSizes) -> None:
        """As `RowStates`, with offset = 0. `sizes` are the layer's."""
        super().__init__()
        self.sizes = sizes
        self.offset = 0

    def offsets(self, num_rows: int) -> list[int]:
        """The tokens seen by each of `num_rows` rows: `offset` of each."""
        return [self.offset] * num_rows

    def for_batch(
        self, max_active_requests: int, max_seq_len: int | None, headroom: int = 0
    ) -> "BatchingState":
        """Returns an empty `BatchingState`: a state has one size, however long its text is."""
        return BatchingState(max_active_requests)

    def fetch(self) -> tuple[mx.array, mx.array]:
        """The states of all rows, [B, K - 1, C] and [B, Hv, Dk, Dv]. Raises ValueError if there are none."""
        return mx.stack([tail for tail, _ in self.states]), mx.stack([each for _, each in self.states])

    def rewind(self, n: int) -> None:
        """Forget the last `n` tokens: all of them, or none.

        Raises ValueError ("cannot rewind") if fewer were seen or n is negative, and UserError ("cannot be cut
        back") for any other number.
        """
        if not 0 <= n <= self.offset:
            raise ValueError(f"cannot rewind {n} of {self.offset} tokens")
        if n == self.offset:
            self.release()
        elif n:
            raise UserError(
                f"a state of {self.offset} tokens cannot be cut back by {n}: a hybrid's drafts need an engine"
            )

    def materialize(self) -> None:
        """Compute what is still lazy, so that no graph outlives the chunk that built it."""
        mx.eval(self.states)

    def release(self) -> None:
        """Give the memory back; no token has been seen afterwards."""
        self.states, self.offset = [], 0

    def _before(self, num_rows: int) -> list[DeltaState]:
        return list(self.states) if self.offset else [no_state(self.sizes)] * num_rows

    def _count(self, num_tokens: int) -> None:
        self.offset += num_tokens


class BatchingState(RowStates, BatchKvCache):
    """The states of one layer for the active requests of a batch, row i of the i-th."""

    def __init__(self, max_active_requests: int) -> None:
        """As `RowStates`, without requests. Sets offset = [], a number of tokens for each row."""
        super().__init__()
        self.max_active_requests = max_active_requests
        self.offset: list[int] = []

    def reserve(self, num_tokens: int) -> None:
        """Nothing: a state does not grow with its tokens."""

    def add_request(self, prefilled: RequestKvCache) -> int:
        """Take a request's state into the next free row and return the row's number.

        Raises ValueError when every row is taken, or when `prefilled` is empty.
        """
        row = len(self.offset)
        if row == self.max_active_requests:
            raise ValueError(f"all {row} rows are taken")
        tail, matrices = prefilled.fetch()
        self.states = [*self.states, (tail[0], matrices[0])]
        self.offset = [*self.offset, prefilled.offset]
        return row

    def remove_request(self, row: int) -> None:
        """Free `row`; the last active row moves into it and takes its number.

        Raises ValueError when there is no such row.
        """
        if not 0 <= row < len(self.offset):
            raise ValueError(f"row {row} is not among the {len(self.offset)} active ones")
        kept = list(range(len(self.offset)))
        kept[row] = kept[-1]
        self.offset = [self.offset[each] for each in kept[:-1]]
        self.states = [self.states[each] for each in kept[:-1]]

    def offsets(self, num_rows: int) -> list[int]:
        """The tokens seen by each active row, whatever `num_rows` is."""
        return self.offset

    def release(self) -> None:
        """Give the memory back and forget every request."""
        self.states, self.offset = [], []

    def _count(self, num_tokens: int) -> None:
        self.offset = [seen + num_tokens for seen in self.offset]
