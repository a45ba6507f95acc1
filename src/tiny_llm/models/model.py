"""Qwen on a set of operators, which compute a layer in a few large pieces: dense, with experts or hybrid.

Every operator costs a few microseconds to plan, start and end, whatever it computes. In a step of one token
through 28 layers with dozens of operators each, that takes longer than the attention.
"""

from collections.abc import Callable, Sequence

import mlx.core as mx

from tiny_llm_lab.types import KernelOps, Memory, Mixer, ModelConfig, RequestKvCache, Wanted

from ..cache.paged_kv_cache import PagedKvCache
from ..layers.positional_encoding import RoPE
from .weights import Weights

FeedForward = Callable[[mx.array], mx.array]  # for each token separately: [..., E] -> [..., E]


class Block:
    """One layer: a mixer and a feed-forward, each inside a residual connection."""

    def __init__(self, mixer: Mixer, rest: Callable[[mx.array, mx.array], mx.array]) -> None:
        """rest(x, mixed) is the layer from the output projection to its end, [..., E] -> [..., E]."""
        raise NotImplementedError("task 2.5.6")

    def __call__(
        self, x: mx.array, offsets: Sequence[int], memory: Memory, wanted: Wanted = Wanted()
    ) -> mx.array:
        """x [B, L, E] at positions `offsets` -> [B, n, E]: after the mixer n = `wanted.last` tokens continue.

        `memory` stores all L tokens.
        """
        raise NotImplementedError("task 2.5.6")


class Qwen:
    """A decoder-only Qwen on a set of operators: embedding, layers, final norm and output head."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: KernelOps) -> None:
        """`weights` are as of `QwenModel`. Model, caches and samplers run on `ops`. Sets config and ops.

        `weights` may be in blocks, see `QuantizedWeights`: then nothing but `ops` reads them.
        """
        raise NotImplementedError("task 2.5.6")

    def __call__(
        self,
        tokens: mx.array,
        offset: int | Sequence[int] = 0,
        cache: Sequence[Memory] | None = None,
        *,
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """tokens [B, L] int32 at positions `offset`, ... -> logits [B, L, V] in the checkpoint's dtype.

        As `QwenModel`: `offset` is one number for all rows, or one for each, `wanted.last` = n limits the
        logits to the last n positions, and `cache`, which has one memory per layer, is extended.
        Raises ValueError if `offset` does not match what the cache has seen.
        """
        raise NotImplementedError("task 2.5.6")

    def hidden(
        self,
        tokens: mx.array,
        offsets: Sequence[int],
        cache: Sequence[Memory] | None = None,
        *,
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """tokens [B, L] at positions offsets[b], ... -> what is `wanted` of [B, L, E] after the last norm."""
        raise NotImplementedError("task 2.5.6")

    def logits(self, hidden: mx.array) -> mx.array:
        """hidden [..., E] after a last norm -> [..., V]."""
        raise NotImplementedError("task 2.5.6")

    def layer(self, weights: Weights, rope: RoPE) -> Block:
        """Returns one layer, from its own weights, named as in `__init__` but without model.layers.0.

        The model builds each of its layers by this method. `rope` is shared by all of them.
        """
        raise NotImplementedError("task 2.5.6")

    def create_kv_cache(self) -> list[RequestKvCache]:
        """Returns an empty memory of one request for each layer, as its mixer creates it."""
        raise NotImplementedError("task 2.5.6")

    def create_paged_kv_cache(
        self, num_blocks: int, block_size: int = 16, kv_bits: int | None = None
    ) -> PagedKvCache:
        """Returns a `PagedKvCache` for this model's layers, of 8 bits or in the dtype of its norms."""
        raise NotImplementedError("task 3.2.2")
