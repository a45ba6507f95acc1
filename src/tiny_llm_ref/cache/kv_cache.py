"""Stored keys and values: the cache of one request, and one cache for a batch of requests."""

from collections.abc import Sequence
from typing import Literal

import mlx.core as mx

from tiny_llm_lab.types import BatchKvCache, KernelOps, KvStorage, RequestKvCache
from tiny_llm_lab.types.computing.layer_stack import StackStep

from .storage import ARRAYS

# Storage grows in multiples of this many tokens, and at least doubles.
_STEP = 64
_EMPTY = mx.zeros((0, 0, 0, 0))


class TinyKvFullCache(RequestKvCache):
    """The keys and values of one layer for rows that all hold `offset` tokens."""

    def __init__(self, storage: KvStorage = ARRAYS) -> None:
        """Start with offset = 0, and with keys and values of size 0. The first update allocates storage.

        From task 2.5.6 on: a model's operators, or another `storage`, write to storage and grow it.
        """
        self.storage = storage
        self.keys = self.values = _EMPTY
        self.offset = 0

    def offsets(self, num_rows: int) -> list[int]:
        """Returns how many tokens each of `num_rows` rows stores: `offset` for every row."""
        return [self.offset] * num_rows

    def update_and_fetch(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array]:
        """Append key and value [B, G, L, D]; return all stored keys and values, [B, G, S, D], S = offset.

        Storage grows by doubling, so that storing n tokens copies O(n) in total. Raises ValueError if the
        shapes of `key` and `value` differ or do not continue what is stored.
        """
        offsets, end = self.offsets(len(key)), self.offset + key.shape[2]
        self._reserve(key, value, end)
        self.keys = self.storage.append(self.keys, key, offsets)
        self.values = self.storage.append(self.values, value, offsets)
        self.offset = end
        return self.fetch()

    def fetch(self) -> tuple[mx.array, mx.array]:
        """Returns all stored keys and values, [B, G, S, D] each. Raises ValueError if the cache is empty."""
        if not self.keys.size:
            raise ValueError("the cache is empty")
        return self.keys[:, :, : self.offset], self.values[:, :, : self.offset]

    def attention_mask(self, num_new_tokens: int) -> Literal["causal"] | None:
        """Returns the mask for tokens about to be appended: one token sees everything, several are causal."""
        return None if num_new_tokens == 1 else "causal"

    def rewind(self, n: int) -> None:
        """Forget the last `n` tokens. Raises ValueError if fewer are stored or n is negative."""
        if not 0 <= n <= self.offset:
            raise ValueError(f"cannot rewind {n} of {self.offset} tokens")
        self.offset -= n

    def materialize(self) -> None:
        """Compute what is still lazy, so that no graph lives longer than the chunk that built it."""
        if self.keys.size:
            mx.eval(self.keys, self.values)

    def for_batch(
        self, max_active_requests: int, max_seq_len: int | None, headroom: int = 0
    ) -> "BatchingKvCache":
        """Returns an empty `BatchingKvCache` on the same storage.

        From task 2.7.8 on: with this `headroom`.
        """
        return BatchingKvCache(max_active_requests, max_seq_len, self.storage, headroom)

    def attend(self, ops: KernelOps, q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
        """See `Memory`: `update_and_fetch`, and then the attention of `ops`."""
        lengths = [stored + k.shape[2] for stored in self.offsets(len(k))]
        return ops.attention(q, *self.update_and_fetch(k, v), lengths, scale)

    def enter(self, step: StackStep) -> bool:
        """See `Memory`: True if nothing is stored yet, or if all rows have room in storage of x's dtype."""
        keys, (batch, length, _) = self.keys, step.x.shape
        _enter(step, self.offsets(batch), keys, self.values)
        has_room = len(keys) == batch and self.offset + length <= keys.shape[2]
        return not keys.size or (has_room and keys.dtype == step.x.dtype)

    def leave(self, step: StackStep) -> None:
        """See `Memory`: take over the storage that the step leaves, with its tokens in every row."""
        self.keys, self.values = step.keys.pop(0), step.values.pop(0)
        self.offset += step.x.shape[1]

    def release(self) -> None:
        """Free the memory and leave the cache empty."""
        self.keys = self.values = _EMPTY
        self.offset = 0

    def _reserve(self, key: mx.array, value: mx.array, needed: int) -> None:
        if key.shape != value.shape:
            raise ValueError(f"key {key.shape} and value {value.shape} differ in shape")
        stored, room = (self.keys, self.values) if self.keys.size else (key, value), self.keys.shape[2]
        if (*key.shape[:2], key.shape[3]) != (*stored[0].shape[:2], stored[0].shape[3]):
            raise ValueError(f"key {key.shape} does not continue a cache of {self.keys.shape}")
        if needed > room:
            room, used = max(_whole_steps(needed), 2 * room), self.offsets(len(key))
            self.keys, self.values = (self.storage.grow(each, len(key), room, used) for each in stored)


class BatchingKvCache(BatchKvCache):
    """The keys and values of one layer for up to `max_active_requests` requests of different lengths.

    Row i of the storage belongs to the i-th active request. A row stays in place while others grow; when a
    request joins or leaves, one row moves.
    """

    def __init__(
        self,
        max_active_requests: int,
        max_seq_len: int | None = None,
        storage: KvStorage = ARRAYS,
        headroom: int = 0,
    ) -> None:
        """Start without requests: offset = [], the number of tokens in each row. `storage` is as above.

        A row never stores more than `max_seq_len` tokens (None = no limit). Task 2.7.8 uses `headroom`.
        From task 2.7.8 on: storage grows `headroom` tokens early, so that not all layers copy in one step.
        """
        self.storage = storage
        self.headroom = headroom
        self.max_active_requests, self.max_seq_len = max_active_requests, max_seq_len
        self.keys = self.values = _EMPTY
        self.offset: list[int] = []

    def reserve(self, num_tokens: int) -> None:
        """Make room for one more row and for `num_tokens` tokens a row, within the limits of the cache.

        Stores nothing. Does nothing before the first request, because the shapes are not known yet.
        """
        if self.keys.size:
            self._grow(self.keys, self.values, num_tokens, len(self.offset) + 1)
            mx.eval(self.keys, self.values)

    def add_request(self, prefilled: RequestKvCache) -> int:
        """Copy a one-request cache into the next free row and return the row's number.

        Raises ValueError if every row is taken, or if `prefilled` is empty or too long.
        """
        row = len(self.offset)
        if row == self.max_active_requests:
            raise ValueError(f"all {row} rows are taken")
        key, value = prefilled.fetch()
        length = key.shape[2]
        self._require_fit(length)
        # Include room for its next token, because growing stops the whole batch and should happen once.
        self._grow(key, value, length + 1, row + 1)
        self.keys[row : row + 1, :, :length] = key
        self.values[row : row + 1, :, :length] = value
        mx.eval(self.keys, self.values)
        self.offset.append(length)
        return row

    def remove_request(self, row: int) -> None:
        """Free `row`. The last active row moves into it and takes its number.

        Raises ValueError if there is no such row.
        """
        if not 0 <= row < len(self.offset):
            raise ValueError(f"row {row} is not among the {len(self.offset)} active ones")
        last = len(self.offset) - 1
        if row != last:
            self.keys = _moved(self.keys, last, row, self.offset[last])
            self.values = _moved(self.values, last, row, self.offset[last])
        self.offset[row] = self.offset[last]
        self.offset.pop()

    def offsets(self, num_rows: int) -> list[int]:
        """Returns how many tokens each active row stores, whatever `num_rows` is."""
        return self.offset

    def update_and_fetch(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array]:
        """Append L tokens to every active row: key and value are [B, G, L, D] for B active requests.

        Returns keys and values [B, G, S, D], where S is the longest row. After the end of a shorter row there
        may be any number, or NaN; `attention_mask` hides it. `offset` becomes a new list, and the old list
        does not change. Raises ValueError if B is not the number of active requests, or if a row would exceed
        max_seq_len.
        """
        batch, _, new, _ = key.shape
        if batch != len(self.offset):
            raise ValueError(f"{batch} rows for {len(self.offset)} active requests")
        longest = max(self.offset) + new
        self._require_fit(longest)
        self._grow(key, value, longest, batch)
        self.keys = self.storage.append(self.keys, key, self.offset)
        self.values = self.storage.append(self.values, value, self.offset)
        self.offset = [stored + new for stored in self.offset]
        return self.keys[:batch, :, :longest], self.values[:batch, :, :longest]

    def attention_mask(self, num_new_tokens: int) -> mx.array:
        """Returns a boolean mask [B, 1, L, S], True = visible, for L tokens about to join every row."""
        seen = mx.array(self.offset)[:, None] + mx.arange(num_new_tokens)
        columns = mx.arange(max(self.offset) + num_new_tokens)
        return (columns <= seen[..., None])[:, None]

    def attend(self, ops: KernelOps, q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
        """Like `TinyKvFullCache.attend`, and each row has its own length."""
        lengths = [stored + k.shape[2] for stored in self.offset]
        return ops.attention(q, *self.update_and_fetch(k, v), lengths, scale)

    def enter(self, step: StackStep) -> bool:
        """See `Memory`: True if a row is active for each of x, and all have room in storage of x's dtype."""
        keys, (batch, length, _) = self.keys, step.x.shape
        _enter(step, self.offset, keys, self.values)
        has_room = max(self.offset, default=0) + length <= keys.shape[2]
        return len(self.offset) == batch and has_room and keys.dtype == step.x.dtype

    def leave(self, step: StackStep) -> None:
        """Like `TinyKvFullCache.leave`. `offset` becomes a new list."""
        self.keys, self.values = step.keys.pop(0), step.values.pop(0)
        self.offset = [stored + step.x.shape[1] for stored in self.offset]

    def release(self) -> None:
        """Free the memory and forget every request."""
        self.keys = self.values = _EMPTY
        self.offset = []

    def _require_fit(self, num_tokens: int) -> None:
        if self.max_seq_len is not None and num_tokens > self.max_seq_len:
            raise ValueError(f"{num_tokens} tokens do not fit into rows of max_seq_len {self.max_seq_len}")

    def _grow(self, key: mx.array, value: mx.array, num_tokens: int, num_rows: int) -> None:
        """Grow storage to at least num_rows x num_tokens, shaped like `key` and `value`."""
        rows, _, room, _ = self.keys.shape
        limit, most_rows = self.max_seq_len, self.max_active_requests
        wanted, num_rows = num_tokens + self.headroom, min(num_rows, most_rows)
        wanted = wanted if limit is None else min(wanted, limit)
        if wanted <= room and num_rows <= rows:
            return
        if wanted > room:
            room = max(_whole_steps(wanted), 2 * room)
            room = room if limit is None else min(room, limit)
        if num_rows > rows:
            rows = most_rows if self.storage.has_free_rows else min(max(num_rows, 2 * rows), most_rows)
        stored = (self.keys, self.values) if self.keys.size else (key, value)
        self.keys, self.values = (self.storage.grow(each, rows, room, self.offset) for each in stored)


def reserve_ahead(layers: Sequence[BatchKvCache], num_tokens: int, num_computed_tokens: int) -> None:
    """Make room in a batch for a prompt of `num_tokens` tokens while it is computed, a few layers at a time.

    Call it after every chunk. The share of `layers` that have room then equals the share of the prompt that
    is computed. When the prompt joins, nothing has to grow, and no earlier step grew all layers at once.
    """
    num_layers = -(-len(layers) * num_computed_tokens // num_tokens)
    for layer in layers[:num_layers]:
        layer.reserve(num_tokens + 1)


def _enter(step: StackStep, offsets: list[int], keys: mx.array, values: mx.array) -> None:
    step.offsets.append(offsets)
    step.keys.append(keys)
    step.values.append(values)


def _whole_steps(num_tokens: int) -> int:
    return -(-num_tokens // _STEP) * _STEP


def _moved(stored: mx.array, source: int, target: int, used: int) -> mx.array:
    """Copies the first `used` tokens of row `source` over row `target` in place, and returns `stored`."""
    # A gather owns its memory. A view would share the storage, and all of it would be copied.
    row = stored[:, :, :used][mx.array([source])]
    mx.eval(row)
    stored[target : target + 1, :, :used] = row
    mx.eval(stored)
    return stored
