"""Keys and values that are computed once: one request's cache, and a batch of them in place."""

from collections.abc import Sequence
from typing import Literal

import mlx.core as mx

from tiny_llm_lab.types import KernelOps, RequestKvCache

# Storage grows in multiples of this many tokens, and at least doubles.
_STEP = 64


class TinyKvFullCache:
    """The keys and values of one layer for rows that all hold `offset` tokens."""

    def __init__(self, ops: KernelOps | None = None) -> None:
        """Start empty, with offset = 0. The first update allocates.

        From task 2.5.6 on: `ops` write and grow.
        """
        self.ops = ops
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.offset = 0

    def update_and_fetch(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array]:
        """Append key, value [B, G, L, D]; return everything stored, [B, G, S, D] each, S = offset.

        Storage grows by doubling, so that n tokens cost O(n) copying in all. Raises ValueError when
        the shapes of `key` and `value` differ or do not continue what is stored.
        """
        end = self.offset + key.shape[2]
        self._reserve(key, value, end)
        assert self.keys is not None and self.values is not None
        if self.ops is not None:
            self.keys = self.ops.append(self.keys, key, self.offset)
            self.values = self.ops.append(self.values, value, self.offset)
        else:
            self.keys[:, :, self.offset : end] = key
            self.values[:, :, self.offset : end] = value
        self.offset = end
        return self.fetch()

    def fetch(self) -> tuple[mx.array, mx.array]:
        """Everything stored: keys and values [B, G, S, D]. Raises ValueError when empty."""
        if self.keys is None or self.values is None:
            raise ValueError("the cache is empty")
        return self.keys[:, :, : self.offset], self.values[:, :, : self.offset]

    def attention_mask(self, num_new_tokens: int) -> Literal["causal"] | None:
        """The mask for tokens about to be appended: one token sees everything, several are causal."""
        return None if num_new_tokens == 1 else "causal"

    def rewind(self, n: int) -> None:
        """Forget the last `n` tokens. Raises ValueError when fewer are stored or n is negative."""
        if not 0 <= n <= self.offset:
            raise ValueError(f"cannot rewind {n} of {self.offset} tokens")
        self.offset -= n

    def materialize(self) -> None:
        """Compute what is still lazy, so that no graph outlives the chunk that built it."""
        if self.keys is not None:
            mx.eval(self.keys, self.values)

    def release(self) -> None:
        """Give the memory back; the cache is empty afterwards."""
        self.keys = self.values = None
        self.offset = 0

    def _reserve(self, key: mx.array, value: mx.array, needed: int) -> None:
        if key.shape != value.shape:
            raise ValueError(f"key {key.shape} and value {value.shape} differ in shape")
        batch, groups, _, dim = key.shape
        if self.keys is not None and (batch, groups, dim) != (*self.keys.shape[:2], self.keys.shape[3]):
            raise ValueError(f"key {key.shape} does not continue a cache of {self.keys.shape}")
        room = 0 if self.keys is None else self.keys.shape[2]
        if needed > room:
            room, used = max(_whole_steps(needed), 2 * room), [self.offset] * batch
            self.keys = _grown(self.ops, self.keys, key, batch, room, used)
            self.values = _grown(self.ops, self.values, value, batch, room, used)


class BatchingKvCache:
    """The keys and values of one layer for up to `max_active_requests` requests of their own lengths.

    Row i of the storage belongs to the i-th active request. Rows stay where they are while others
    grow; a request that joins or leaves moves one row.
    """

    def __init__(
        self,
        max_active_requests: int,
        max_seq_len: int | None = None,
        ops: KernelOps | None = None,
        headroom: int = 0,
    ) -> None:
        """Start without requests: offset = [], the tokens stored by row. `ops` as above.

        A row never holds more than `max_seq_len` tokens (None = any).
        From task 2.7.8 on: storage grows `headroom` tokens before it must: not all layers copy in one step.
        """
        self.ops, self.headroom = ops, headroom
        self.max_active_requests, self.max_seq_len = max_active_requests, max_seq_len
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.offset: list[int] = []

    def reserve(self, num_tokens: int) -> None:
        """Make room for one more row, and for `num_tokens` tokens a row; at most what the cache may hold.

        Stores nothing. Does nothing before the first request: the shapes are not known yet.
        """
        if self.keys is not None and self.values is not None:
            self._grow(self.keys, self.values, num_tokens, len(self.offset) + 1)
            mx.eval(self.keys, self.values)

    def add_request(self, prefilled: RequestKvCache) -> int:
        """Copy a one-request cache into the next free row and return the row's number.

        Raises ValueError when every row is taken, or when `prefilled` is empty or too long.
        """
        row = len(self.offset)
        if row == self.max_active_requests:
            raise ValueError(f"all {row} rows are taken")
        key, value = prefilled.fetch()
        length = key.shape[2]
        self._require_fit(length)
        # With room for its next token: growing stops the whole batch, and would do so twice.
        self._grow(key, value, length + 1, row + 1)
        assert self.keys is not None and self.values is not None
        self.keys[row : row + 1, :, :length] = key
        self.values[row : row + 1, :, :length] = value
        mx.eval(self.keys, self.values)
        self.offset.append(length)
        return row

    def remove_request(self, row: int) -> None:
        """Free `row`; the last active row moves into it and takes its number.

        Raises ValueError when there is no such row.
        """
        if not 0 <= row < len(self.offset):
            raise ValueError(f"row {row} is not among the {len(self.offset)} active ones")
        last = len(self.offset) - 1
        if row != last:
            self.keys = _moved(self.keys, last, row, self.offset[last])
            self.values = _moved(self.values, last, row, self.offset[last])
        self.offset[row] = self.offset[last]
        self.offset.pop()

    def update_and_fetch(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array]:
        """Append L tokens to every active row: key, value [B, G, L, D] with B active requests.

        Returns [B, G, S, D] each, with S the longest row; `attention_mask` hides what is beyond the end of a
        shorter one, which may be any number or none. `offset` becomes a new list; the one before stays as it
        was. Raises ValueError when B is not the number of active requests or a row would pass max_seq_len.
        """
        batch, _, new, _ = key.shape
        if batch != len(self.offset):
            raise ValueError(f"{batch} rows for {len(self.offset)} active requests")
        longest = max(self.offset) + new
        self._require_fit(longest)
        self._grow(key, value, longest, batch)
        assert self.keys is not None and self.values is not None
        if self.ops is not None:
            self.keys = self.ops.append(self.keys, key, self.offset)
            self.values = self.ops.append(self.values, value, self.offset)
        else:
            rows = mx.arange(batch)[:, None]
            columns = mx.array(self.offset)[:, None] + mx.arange(new)
            self.keys[rows, :, columns] = key.transpose(0, 2, 1, 3)
            self.values[rows, :, columns] = value.transpose(0, 2, 1, 3)
        self.offset = [stored + new for stored in self.offset]
        return self.keys[:batch, :, :longest], self.values[:batch, :, :longest]

    def attention_mask(self, num_new_tokens: int) -> mx.array:
        """A boolean mask [B, 1, L, S] for L tokens about to be appended to every row: True = may be seen."""
        seen = mx.array(self.offset)[:, None] + mx.arange(num_new_tokens)
        columns = mx.arange(max(self.offset) + num_new_tokens)
        return (columns <= seen[..., None])[:, None]

    def release(self) -> None:
        """Give the memory back and forget every request."""
        self.keys = self.values = None
        self.offset = []

    def _require_fit(self, num_tokens: int) -> None:
        if self.max_seq_len is not None and num_tokens > self.max_seq_len:
            raise ValueError(f"{num_tokens} tokens do not fit into rows of max_seq_len {self.max_seq_len}")

    def _grow(self, key: mx.array, value: mx.array, num_tokens: int, num_rows: int) -> None:
        """Storage for so many tokens and rows of the shapes of `key` and `value`, if there is less."""
        rows, room = (0, 0) if self.keys is None else (self.keys.shape[0], self.keys.shape[2])
        limit, most_rows = self.max_seq_len, self.max_active_requests
        wanted, num_rows = num_tokens + self.headroom, min(num_rows, most_rows)
        wanted = wanted if limit is None else min(wanted, limit)
        if wanted <= room and num_rows <= rows:
            return
        if wanted > room:
            room = max(_whole_steps(wanted), 2 * room)
            room = room if limit is None else min(room, limit)
        if num_rows > rows:
            is_free = self.ops is not None and self.ops.has_free_rows
            rows = most_rows if is_free else min(max(num_rows, 2 * rows), most_rows)
        self.keys = _grown(self.ops, self.keys, key, rows, room, self.offset)
        self.values = _grown(self.ops, self.values, value, rows, room, self.offset)


def reserve_ahead(layers: Sequence[BatchingKvCache], num_tokens: int, num_computed_tokens: int) -> None:
    """Make room in a batch for a prompt of `num_tokens` tokens while it is computed, a few layers at a time.

    To be called after every chunk: the share of `layers` that have room is then the share of the prompt that
    is computed. When the prompt joins nothing has to grow, and no step before has grown all layers at once.
    """
    num_layers = -(-len(layers) * num_computed_tokens // num_tokens)
    for layer in layers[:num_layers]:
        layer.reserve(num_tokens + 1)


def _whole_steps(num_tokens: int) -> int:
    return -(-num_tokens // _STEP) * _STEP


def _grown(
    ops: KernelOps | None, stored: mx.array | None, like: mx.array, rows: int, room: int, used: Sequence[int]
) -> mx.array:
    """Storage [rows, G, room, D] like `like`: what is `used` of the rows of `stored`, and then room.

    C++ kernels do not fill the room: that would take a batch of long rows a second, and none of it is read.
    """
    if ops is not None:
        return ops.grow(like if stored is None else stored, rows, room, list(used))
    _, groups, _, dim = like.shape
    grown = mx.zeros((rows, groups, room, dim), like.dtype)
    if stored is not None and used:
        old = slice(None, len(used)), slice(None), slice(None, max(used))
        grown[old] = stored[old]
    return grown


def _moved(stored: mx.array | None, source: int, target: int, used: int) -> mx.array:
    """`stored` with the `used` tokens of one row copied over those of another, in place."""
    assert stored is not None
    # A gather owns its memory. A view would share the storage and force a copy of all of it.
    row = stored[:, :, :used][mx.array([source])]
    mx.eval(row)
    stored[target : target + 1, :, :used] = row
    mx.eval(stored)
    return stored
