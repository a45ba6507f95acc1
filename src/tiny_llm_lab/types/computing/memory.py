"""What a layer remembers of earlier tokens: one family, whatever the layer's mixer is."""

from collections.abc import Sequence
from typing import Final, Literal, Protocol

import mlx.core as mx

from tiny_llm_lab.types.computing.hybrid import DeltaRule
from tiny_llm_lab.types.computing.kernel_ops import KernelOps
from tiny_llm_lab.types.computing.layer_stack import StackStep


class Memory(Protocol):
    """What one layer remembers of the earlier tokens of some rows.

    A layer with attention calls `attend`, and one with a gated delta net `update`. A class has the one that
    its layer calls. `enter` and `leave` let all layers run as one operator. The attention of week 1 calls
    `update_and_fetch`, with the mask of `attention_mask`.
    """

    def offsets(self, num_rows: int) -> list[int]:
        """Returns how many tokens of each of `num_rows` rows it has seen."""

    def release(self) -> None:
        """Free the memory. By default there is none."""
        return

    def attend(self, ops: KernelOps, q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
        """Store k, v [B, G, L, D]; attend with q [B, H, n, D] of the last tokens -> [B, n, H * D], causal."""
        raise TypeError(f"{type(self).__name__} has no keys and values")

    def update(
        self, rule: DeltaRule, rows: Sequence[mx.array], num_rows: int, num_new_tokens: int
    ) -> mx.array:
        """Run `rule` over inputs [B * L, ...] from the states on, and keep the new states: [B * L, ...]."""
        raise TypeError(f"{type(self).__name__} has no states")

    def update_and_fetch(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array]:
        """Append key and value [B, G, L, D]; return all stored keys and values, [B, G, S, D] each."""
        raise TypeError(f"{type(self).__name__} has no rows of keys and values")

    def attention_mask(self, num_new_tokens: int) -> mx.array | Literal["causal"] | None:
        """Returns the mask for `num_new_tokens` tokens that are about to be appended."""
        raise TypeError(f"{type(self).__name__} has no rows of keys and values")

    def enter(self, step: StackStep) -> bool:
        """Give `step` what it reads. Returns False, the default, if the layers must run one at a time."""
        return False

    def leave(self, step: StackStep) -> None:
        """Take over from `step` what it has computed for this layer, the first that is left in its lists.

        By default nothing.
        """
        return


class RequestKvCache(Memory, Protocol):
    """The memory of a single request."""

    offset: int  # the number of tokens that it has seen

    def fetch(self) -> tuple[mx.array, mx.array]:
        """Returns all stored keys and values, [1, G, S, D] each, or the two arrays of a state."""

    def materialize(self) -> None:
        """Compute what is still lazy."""

    def rewind(self, n: int) -> None:
        """Forget the last `n` tokens. Raises UserError for a part of what a state has seen."""

    def for_batch(
        self, max_active_requests: int, max_seq_len: int | None, headroom: int = 0
    ) -> "BatchKvCache":
        """Returns an empty memory of the same kind for several requests of at most `max_seq_len` tokens."""
        raise TypeError(f"{type(self).__name__} has no memory of several requests")


class BatchKvCache(Memory, Protocol):
    """The memory of several requests, row i that of the i-th."""

    def reserve(self, num_tokens: int) -> None:
        """Make room for one more row, and for `num_tokens` tokens a row."""

    def add_request(self, prefilled: RequestKvCache) -> int:
        """Copy a request's memory into the next free row; the row's number."""

    def remove_request(self, row: int) -> None:
        """Free `row`; the last active row takes its number."""


class NoCache(Memory):
    """The `Memory` of a layer that remembers nothing."""

    def offsets(self, num_rows: int) -> list[int]:
        """Returns 0 for each of `num_rows` rows."""
        return [0] * num_rows

    def update_and_fetch(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array]:
        """Returns `key` and `value` unchanged."""
        return key, value

    def attention_mask(self, num_new_tokens: int) -> Literal["causal"]:
        """Returns "causal": a token sees the earlier tokens of the same call."""
        return "causal"

    def release(self) -> None:
        """Does nothing, because there is nothing to free."""


NO_CACHE: Final[Memory] = NoCache()
