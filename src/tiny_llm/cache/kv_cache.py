"""Keys and values that are computed once: one request's cache, and a batch of them in place."""

from collections.abc import Sequence
from typing import Literal

import mlx.core as mx

from tiny_llm_lab.types import BatchKvCache, KernelOps, RequestKvCache


class TinyKvFullCache:
    """The keys and values of one layer for rows that all hold `offset` tokens."""

    def __init__(self) -> None:
        """Start with offset = 0, and with keys and values of size 0. The first update allocates."""
        raise NotImplementedError("task 2.1.1")

    def offsets(self, num_rows: int) -> list[int]:
        """The tokens stored of each of `num_rows` rows: `offset` of each."""
        raise NotImplementedError("task 2.1.1")

    def update_and_fetch(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array]:
        """Append key, value [B, G, L, D]; return everything stored, [B, G, S, D] each, S = offset.

        Storage grows by doubling, so that n tokens cost O(n) copying in all. Raises ValueError when
        the shapes of `key` and `value` differ or do not continue what is stored.
        """
        raise NotImplementedError("task 2.1.1")

    def fetch(self) -> tuple[mx.array, mx.array]:
        """Everything stored: keys and values [B, G, S, D]. Raises ValueError when empty."""
        raise NotImplementedError("task 2.1.1")

    def attention_mask(self, num_new_tokens: int) -> Literal["causal"] | None:
        """The mask for tokens about to be appended: one token sees everything, several are causal."""
        raise NotImplementedError("task 2.1.1")

    def rewind(self, n: int) -> None:
        """Forget the last `n` tokens. Raises ValueError when fewer are stored or n is negative."""
        raise NotImplementedError("task 2.1.1")

    def materialize(self) -> None:
        """Compute what is still lazy, so that no graph outlives the chunk that built it."""
        raise NotImplementedError("task 2.1.1")

    def has_room(self, num_rows: int, num_new_tokens: int, dtype: mx.Dtype) -> bool:
        """Whether the storage is of `dtype` and has room for so many more tokens of `num_rows` rows."""
        raise NotImplementedError("task 3.2.6")

    def adopt(self, keys: mx.array, values: mx.array, num_new_tokens: int) -> None:
        """Take storage [B, G, room, D] that has so many more tokens of every row than this cache."""
        raise NotImplementedError("task 3.2.6")

    def release(self) -> None:
        """Give the memory back; the cache is empty afterwards."""
        raise NotImplementedError("task 2.1.1")


class BatchingKvCache:
    """The keys and values of one layer for up to `max_active_requests` requests of their own lengths.

    Row i of the storage belongs to the i-th active request. Rows stay where they are while others
    grow; a request that joins or leaves moves one row.
    """

    def __init__(
        self, max_active_requests: int, max_seq_len: int | None = None, ops: KernelOps | None = None
    ) -> None:
        """Start without requests: offset = [], the tokens stored by row. `ops` as above.

        A row never holds more than `max_seq_len` tokens (None = any).
        """
        raise NotImplementedError("task 2.6.1")

    def reserve(self, num_tokens: int) -> None:
        """Make room for one more row, and for `num_tokens` tokens a row; at most what the cache may hold.

        Stores nothing. Does nothing before the first request: the shapes are not known yet.
        """
        raise NotImplementedError("task 2.7.8")

    def add_request(self, prefilled: RequestKvCache) -> int:
        """Copy a one-request cache into the next free row and return the row's number.

        Raises ValueError when every row is taken, or when `prefilled` is empty or too long.
        """
        raise NotImplementedError("task 2.6.1")

    def remove_request(self, row: int) -> None:
        """Free `row`; the last active row moves into it and takes its number.

        Raises ValueError when there is no such row.
        """
        raise NotImplementedError("task 2.6.1")

    def offsets(self, num_rows: int) -> list[int]:
        """The tokens stored of each active row, whatever `num_rows` is."""
        raise NotImplementedError("task 2.6.1")

    def update_and_fetch(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array]:
        """Append L tokens to every active row: key, value [B, G, L, D] with B active requests.

        Returns [B, G, S, D] each, with S the longest row; `attention_mask` hides what is beyond the end of a
        shorter one, which may be any number or none. `offset` becomes a new list; the one before stays as it
        was. Raises ValueError when B is not the number of active requests or a row would pass max_seq_len.
        """
        raise NotImplementedError("task 2.6.1")

    def attention_mask(self, num_new_tokens: int) -> mx.array:
        """A boolean mask [B, 1, L, S] for L tokens about to be appended to every row: True = may be seen."""
        raise NotImplementedError("task 2.6.1")

    def has_room(self, num_rows: int, num_new_tokens: int, dtype: mx.Dtype) -> bool:
        """As in `TinyKvFullCache`; False unless `num_rows` requests are active."""
        raise NotImplementedError("task 3.2.6")

    def adopt(self, keys: mx.array, values: mx.array, num_new_tokens: int) -> None:
        """As in `TinyKvFullCache`. `offset` becomes a new list."""
        raise NotImplementedError("task 3.2.6")

    def release(self) -> None:
        """Give the memory back and forget every request."""
        raise NotImplementedError("task 2.6.1")


def reserve_ahead(layers: Sequence[BatchKvCache], num_tokens: int, num_computed_tokens: int) -> None:
    """Make room in a batch for a prompt of `num_tokens` tokens while it is computed, a few layers at a time.

    To be called after every chunk: the share of `layers` that have room is then the share of the prompt that
    is computed. When the prompt joins nothing has to grow, and no step before has grown all layers at once.
    """
    raise NotImplementedError("task 2.7.8")
