"""Stored keys and values: the cache of one request, and one cache for a batch of requests."""

from collections.abc import Sequence
from typing import Literal

import mlx.core as mx

from tiny_llm_lab.types import BatchKvCache, KernelOps, KvStorage, RequestKvCache
from tiny_llm_lab.types.computing.layer_stack import StackStep

from .storage import ARRAYS


class TinyKvFullCache(RequestKvCache):
    """The keys and values of one layer for rows that all hold `offset` tokens."""

    def __init__(self) -> None:
        """Start with offset = 0, and with keys and values of size 0. The first update allocates storage."""
        raise NotImplementedError("task 2.1.1")

    def offsets(self, num_rows: int) -> list[int]:
        """Returns how many tokens each of `num_rows` rows stores: `offset` for every row."""
        raise NotImplementedError("task 2.1.1")

    def update_and_fetch(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array]:
        """Append key and value [B, G, L, D]; return all stored keys and values, [B, G, S, D], S = offset.

        Storage grows by doubling, so that storing n tokens copies O(n) in total. Raises ValueError if the
        shapes of `key` and `value` differ or do not continue what is stored.
        """
        raise NotImplementedError("task 2.1.1")

    def fetch(self) -> tuple[mx.array, mx.array]:
        """Returns all stored keys and values, [B, G, S, D] each. Raises ValueError if the cache is empty."""
        raise NotImplementedError("task 2.1.1")

    def attention_mask(self, num_new_tokens: int) -> Literal["causal"] | None:
        """Returns the mask for tokens about to be appended: one token sees everything, several are causal."""
        raise NotImplementedError("task 2.1.1")

    def rewind(self, n: int) -> None:
        """Forget the last `n` tokens. Raises ValueError if fewer are stored or n is negative."""
        raise NotImplementedError("task 2.1.1")

    def materialize(self) -> None:
        """Compute what is still lazy, so that no graph lives longer than the chunk that built it."""
        raise NotImplementedError("task 2.1.1")

    def for_batch(self, max_active_requests: int, max_seq_len: int | None) -> "BatchingKvCache":
        """Returns an empty `BatchingKvCache` on the same storage."""
        raise NotImplementedError("task 2.6.1")

    def attend(self, ops: KernelOps, q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
        """See `Memory`: `update_and_fetch`, and then the attention of `ops`."""
        raise NotImplementedError("task 2.5.6")

    def enter(self, step: StackStep) -> bool:
        """See `Memory`: True if nothing is stored yet, or if all rows have room in storage of x's dtype."""
        raise NotImplementedError("task 3.2.6")

    def leave(self, step: StackStep) -> None:
        """See `Memory`: take over the storage that the step leaves, with its tokens in every row."""
        raise NotImplementedError("task 3.2.6")

    def release(self) -> None:
        """Free the memory and leave the cache empty."""
        raise NotImplementedError("task 2.1.1")


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
        """
        raise NotImplementedError("task 2.6.1")

    def reserve(self, num_tokens: int) -> None:
        """Make room for one more row and for `num_tokens` tokens a row, within the limits of the cache.

        Stores nothing. Does nothing before the first request, because the shapes are not known yet.
        """
        raise NotImplementedError("task 2.7.8")

    def add_request(self, prefilled: RequestKvCache) -> int:
        """Copy a one-request cache into the next free row and return the row's number.

        Raises ValueError if every row is taken, or if `prefilled` is empty or too long.
        """
        raise NotImplementedError("task 2.6.1")

    def remove_request(self, row: int) -> None:
        """Free `row`. The last active row moves into it and takes its number.

        Raises ValueError if there is no such row.
        """
        raise NotImplementedError("task 2.6.1")

    def offsets(self, num_rows: int) -> list[int]:
        """Returns how many tokens each active row stores, whatever `num_rows` is."""
        raise NotImplementedError("task 2.6.1")

    def update_and_fetch(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array]:
        """Append L tokens to every active row: key and value are [B, G, L, D] for B active requests.

        Returns keys and values [B, G, S, D], where S is the longest row. After the end of a shorter row there
        may be any number, or NaN; `attention_mask` hides it. `offset` becomes a new list, and the old list
        does not change. Raises ValueError if B is not the number of active requests, or if a row would exceed
        max_seq_len.
        """
        raise NotImplementedError("task 2.6.1")

    def attention_mask(self, num_new_tokens: int) -> mx.array:
        """Returns a boolean mask [B, 1, L, S], True = visible, for L tokens about to join every row."""
        raise NotImplementedError("task 2.6.1")

    def attend(self, ops: KernelOps, q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
        """Like `TinyKvFullCache.attend`, and each row has its own length."""
        raise NotImplementedError("task 2.6.1")

    def enter(self, step: StackStep) -> bool:
        """See `Memory`: True if a row is active for each of x, and all have room in storage of x's dtype."""
        raise NotImplementedError("task 3.2.6")

    def leave(self, step: StackStep) -> None:
        """Like `TinyKvFullCache.leave`. `offset` becomes a new list."""
        raise NotImplementedError("task 3.2.6")

    def release(self) -> None:
        """Free the memory and forget every request."""
        raise NotImplementedError("task 2.6.1")


def reserve_ahead(layers: Sequence[BatchKvCache], num_tokens: int, num_computed_tokens: int) -> None:
    """Make room in a batch for a prompt of `num_tokens` tokens while it is computed, a few layers at a time.

    Call it after every chunk. The share of `layers` that have room then equals the share of the prompt that
    is computed. When the prompt joins, nothing has to grow, and no earlier step grew all layers at once.
    """
    raise NotImplementedError("task 2.7.8")
