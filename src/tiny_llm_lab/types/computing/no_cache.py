"""The cache of a layer that remembers nothing."""

from typing import Final, Literal

import mlx.core as mx

from tiny_llm_lab.types.computing.memory import Memory


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
