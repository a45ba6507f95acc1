"""What a gated delta net remembers: a state of fixed size, however many tokens it has seen."""

from typing import Literal

import mlx.core as mx

from tiny_llm_lab.types import DeltaNetSizes, RequestKvCache, UserError

_EMPTY = mx.zeros((0, 0, 0))


class RequestState:
    """The state of one layer for rows that all have seen `offset` tokens."""

    def __init__(self, sizes: DeltaNetSizes) -> None:
        """Start with offset = 0; nothing is allocated before the first token. `sizes` are the layer's."""
        self.sizes = sizes
        self._tail = self._state = _EMPTY
        self.offset = 0

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays, 0 before the first token."""
        return self._tail.nbytes + self._state.nbytes

    def offsets(self, num_rows: int) -> list[int]:
        """The tokens seen by each of `num_rows` rows: `offset` of each."""
        return [self.offset] * num_rows

    def attention_mask(self, num_new_tokens: int) -> Literal["causal"] | None:
        """What the layers with attention need: one token sees everything, several are causal."""
        return None if num_new_tokens == 1 else "causal"

    def read(self, num_rows: int) -> tuple[mx.array, mx.array]:
        """The last conv inputs [B, K - 1, C] and the matrices [B, Hv, Dk, Dv], float32; zeros at the start.

        Raises ValueError when `num_rows` is not the number of rows that are stored.
        """
        if not self.offset:
            return (
                mx.zeros((num_rows, *self.sizes.tail_shape)),
                mx.zeros((num_rows, *self.sizes.state_shape)),
            )
        return _require_rows(num_rows, self._tail, self._state)

    def update_and_fetch(self, inputs: mx.array, state: mx.array) -> tuple[mx.array, mx.array]:
        """Take the conv inputs [B, L, C] of L tokens and the matrices after them; return what is kept.

        Of all inputs the last K - 1 stay; before the first token there are zeros.
        """
        tail, _ = self.read(len(inputs))
        self._tail, self._state = _last(tail, inputs), state
        self.offset += inputs.shape[1]
        return self._tail, self._state

    def fetch(self) -> tuple[mx.array, mx.array]:
        """What is stored, as in `read`. Raises ValueError when empty."""
        if not self.offset:
            raise ValueError("the state is empty")
        return self._tail, self._state

    def rewind(self, n: int) -> None:
        """Forget the last `n` tokens: none or all. Raises UserError for another number of them."""
        if n == self.offset:
            self.release()
        elif n:
            raise UserError(
                "a hybrid model's state cannot be cut back by some tokens: leave out drafts (--speculate)"
            )

    def materialize(self) -> None:
        """Compute what is still lazy, so that no graph outlives the chunk that built it."""
        mx.eval(self._tail, self._state)

    def release(self) -> None:
        """Give the memory back; no token has been seen afterwards."""
        self._tail = self._state = _EMPTY
        self.offset = 0


class BatchingState:
    """The states of one layer for the active requests of a batch, row i of the i-th.

    A step makes new arrays of all rows; nothing is padded, because a state has one size.
    """

    def __init__(self, max_active_requests: int) -> None:
        """Start without requests: offset = [], the tokens seen by row."""
        self.max_active_requests = max_active_requests
        self._tail = self._state = _EMPTY
        self.offset: list[int] = []

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return self._tail.nbytes + self._state.nbytes

    def reserve(self, num_tokens: int) -> None:
        """Nothing: a state does not grow with its tokens."""

    def add_request(self, prefilled: RequestKvCache) -> int:
        """Copy a request's state into the next free row and return the row's number.

        Raises ValueError when every row is taken, or when `prefilled` is empty.
        """
        row = len(self.offset)
        if row == self.max_active_requests:
            raise ValueError(f"all {row} rows are taken")
        own = prefilled.fetch()
        stored = (self._tail, self._state) if self.offset else (own[0][:0], own[1][:0])
        self._tail, self._state = (mx.concatenate(list(pair)) for pair in zip(stored, own, strict=True))
        mx.eval(self._tail, self._state)
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
        kept.pop()
        self.offset = [self.offset[each] for each in kept]
        if not kept:
            return self.release()
        self._tail, self._state = (stored[mx.array(kept)] for stored in (self._tail, self._state))
        return mx.eval(self._tail, self._state)

    def offsets(self, num_rows: int) -> list[int]:
        """The tokens seen by each active row, whatever `num_rows` is."""
        return self.offset

    def attention_mask(self, num_new_tokens: int) -> mx.array:
        """What the layers with attention need, [B, 1, L, S]: as in `BatchingKvCache`."""
        seen = mx.array(self.offset)[:, None] + mx.arange(num_new_tokens)
        columns = mx.arange(max(self.offset) + num_new_tokens)
        return (columns <= seen[..., None])[:, None]

    def read(self, num_rows: int) -> tuple[mx.array, mx.array]:
        """As in `RequestState`; there is a row for each active request."""
        return _require_rows(num_rows, self._tail, self._state)

    def update_and_fetch(self, inputs: mx.array, state: mx.array) -> tuple[mx.array, mx.array]:
        """As in `RequestState`, for all rows. `offset` becomes a new list."""
        tail, _ = self.read(len(inputs))
        self._tail, self._state = _last(tail, inputs), state
        self.offset = [seen + inputs.shape[1] for seen in self.offset]
        return self._tail, self._state

    def release(self) -> None:
        """Give the memory back and forget every request."""
        self._tail = self._state = _EMPTY
        self.offset = []


def _require_rows(num_rows: int, tail: mx.array, state: mx.array) -> tuple[mx.array, mx.array]:
    if len(state) != num_rows:
        raise ValueError(f"{num_rows} rows for {len(state)} states")
    return tail, state


def _last(tail: mx.array, inputs: mx.array) -> mx.array:
    """The last K - 1 tokens of both, [B, K - 1, C] float32, in memory of their own."""
    both = mx.concatenate([tail, inputs.astype(mx.float32)], axis=1)
    return mx.contiguous(both[:, inputs.shape[1] :])
