"""What a gated delta net remembers: a state of fixed size, however many tokens it has seen.

A state is a value. Whoever keeps a reference to one keeps that moment; a step returns new ones.
"""

from collections.abc import Sequence
from itertools import pairwise

import mlx.core as mx

from tiny_llm_lab.types import BatchKvCache, DeltaNetSizes, DeltaRule, DeltaState, RequestKvCache, UserError
from tiny_llm_lab.types.computing.layer_stack import StackStep

from .moment import Moment


def no_state(sizes: DeltaNetSizes) -> DeltaState:
    """The state before the first token: zeros."""
    return mx.zeros(sizes.tail_shape), mx.zeros(sizes.state_shape)


class SequenceState(RequestKvCache):
    """The states of one layer for rows that all have seen `offset` tokens."""

    def __init__(self, sizes: DeltaNetSizes) -> None:
        """Start with offset = 0 and states = [], later one for each row. `sizes` are the layer's."""
        self.sizes = sizes
        self.states: list[DeltaState] = []
        self.offset = 0
        self.num_kept = 0  # tokens that may be taken back
        self._steps: list[tuple[int, list[Moment]]] = []  # with their number of tokens, the newest last

    @property
    def nbytes(self) -> int:
        """Bytes of all states, 0 before the first token."""
        return sum(part.nbytes for state in self.states for part in state)

    def offsets(self, num_rows: int) -> list[int]:
        """The tokens seen by each of `num_rows` rows: `offset` of each."""
        return [self.offset] * num_rows

    def update(
        self, rule: DeltaRule, rows: Sequence[mx.array], num_rows: int, num_new_tokens: int
    ) -> mx.array:
        """Run `rule` over [B * L, ...] inputs from the states on, and keep the new states: out [B * L, ...].

        Raises ValueError for another number of rows B than what is stored.
        """
        cut = num_new_tokens - self.num_kept
        if num_rows > 1 or not 0 < cut < num_new_tokens:
            return self._advance(rule, rows, num_rows, num_new_tokens)
        # Of a long chunk only the end may be taken back, so that not all of its inputs are kept.
        parts = ((0, cut), (cut, num_new_tokens))
        return mx.concatenate([self._advance(rule, [p[a:b] for p in rows], 1, b - a) for a, b in parts])

    def for_batch(
        self, max_active_requests: int, max_seq_len: int | None, headroom: int = 0
    ) -> "BatchingState":
        """Returns an empty `BatchingState`: a state has one size, however long its text is."""
        return BatchingState(max_active_requests)

    def enter(self, step: StackStep) -> bool:
        """See `Memory`: False if tokens may be taken back."""
        step.states.append(self._before(len(step.x)))
        return not self.num_kept

    def leave(self, step: StackStep) -> None:
        """See `Memory`: take over the new states."""
        self.states = step.states.pop(0)
        self.offset += step.x.shape[1]

    def _before(self, num_rows: int) -> list[DeltaState]:
        return list(self.states) if self.offset else [no_state(self.sizes)] * num_rows

    def _advance(
        self, rule: DeltaRule, rows: Sequence[mx.array], num_rows: int, num_new_tokens: int
    ) -> mx.array:
        before = self._before(num_rows)
        starts = _starts(num_rows, num_new_tokens, before)
        out, self.states = rule(rows, before, starts)
        self.offset += num_new_tokens
        if self.num_kept:
            spans = zip(pairwise(starts), before, strict=True)
            step = [Moment(rule, [part[a:b] for part in rows], state) for (a, b), state in spans]
            self._steps.append((num_new_tokens, step))
            while sum(n for n, _ in self._steps[1:]) >= self.num_kept:
                del self._steps[0]
        return out

    def fetch(self) -> tuple[mx.array, mx.array]:
        """The states of all rows, [B, K - 1, C] and [B, Hv, Dk, Dv]. Raises ValueError if there are none."""
        return mx.stack([tail for tail, _ in self.states]), mx.stack([each for _, each in self.states])

    def allow_rewind(self, num_tokens: int) -> None:
        """From now on keep what `rewind` needs for the last `num_tokens` tokens; never for fewer than before.

        Sets num_kept to that number, which is 0 before. What was computed before this call is not kept.
        """
        self.num_kept = max(self.num_kept, num_tokens)

    def rewind(self, n: int) -> None:
        """Forget the last `n` tokens.

        Raises ValueError ("cannot rewind") if fewer were seen or n is negative, and UserError ("cannot be cut
        back") if `allow_rewind` allows fewer, unless all are forgotten.
        """
        if not 0 <= n <= self.offset:
            raise ValueError(f"cannot rewind {n} of {self.offset} tokens")
        if n == self.offset:
            self.release()
            return
        if n > sum(length for length, _ in self._steps):
            raise UserError(
                f"a state of {self.offset} tokens cannot be cut back by {n}: call allow_rewind first"
            )
        self.offset -= n
        while n:
            length, step = self._steps.pop()
            kept = max(0, length - n)
            self.states = [moment.state_after(kept) for moment in step]
            if kept:
                self._steps.append((kept, step))
            n -= length - kept

    def materialize(self) -> None:
        """Compute what is still lazy, so that no graph outlives the chunk that built it."""
        mx.eval(self.states)

    def release(self) -> None:
        """Give the memory back; no token has been seen afterwards."""
        self.states, self.offset, self._steps = [], 0, []


class BatchingState(BatchKvCache):
    """The states of one layer for the active requests of a batch, row i of the i-th."""

    def __init__(self, max_active_requests: int) -> None:
        """Start without requests. Sets offset = [], the tokens seen by row, and states = [], one by row."""
        self.max_active_requests = max_active_requests
        self.states: list[DeltaState] = []
        self.offset: list[int] = []

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(part.nbytes for state in self.states for part in state)

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

    def update(
        self, rule: DeltaRule, rows: Sequence[mx.array], num_rows: int, num_new_tokens: int
    ) -> mx.array:
        """As in `SequenceState`, with a row for each active request; `offset` becomes a new list."""
        out, self.states = rule(rows, self.states, _starts(num_rows, num_new_tokens, self.states))
        self.offset = [seen + num_new_tokens for seen in self.offset]
        return out

    def enter(self, step: StackStep) -> bool:
        """See `Memory`: always True."""
        step.states.append(list(self.states))
        return True

    def leave(self, step: StackStep) -> None:
        """Like `SequenceState.leave`; `offset` becomes a new list."""
        self.states = step.states.pop(0)
        self.offset = [seen + step.x.shape[1] for seen in self.offset]

    def release(self) -> None:
        """Give the memory back and forget every request."""
        self.states, self.offset = [], []


def _starts(num_rows: int, num_new_tokens: int, states: Sequence[DeltaState]) -> list[int]:
    """Where each row's tokens begin among all new ones, and their number [B + 1]."""
    if len(states) != num_rows:
        raise ValueError(f"{num_rows} rows for {len(states)} states")
    return [row * num_new_tokens for row in range(num_rows + 1)]
