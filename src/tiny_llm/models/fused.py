"""One layer on a model's operators: the arithmetic of a transformer block in a few large pieces.

An operator costs some microseconds to plan, to start and to end, whatever it computes. A step of one token
through 28 layers of dozens of operators each loses more time that way than its attention takes.
"""

from collections.abc import Callable, Mapping

import mlx.core as mx

from tiny_llm_lab.types import KernelOps, KvCache, ModelConfig, Weight

from ..layers.attention import Mask
from ..layers.positional_encoding import RoPE

AllSum = Callable[[mx.array], mx.array]


class FusedLayer:
    """What a transformer block computes with a causal mask, by the operators `ops`."""

    def __init__(
        self,
        ops: KernelOps,
        config: ModelConfig,
        weights: Mapping[str, Weight],
        rope: RoPE,
        mlp: Callable[[mx.array], mx.array],
    ) -> None:
        """`weights` as for `QwenTransformerBlock`; `mlp` is its feed-forward."""
        raise NotImplementedError("task 2.5.6")

    def __call__(
        self, x: mx.array, offset: int = 0, cache: KvCache | None = None, keep: int | None = None
    ) -> mx.array:
        """x [B, L, E] at positions `offset`, ... -> [B, keep, E], of the last `keep` tokens (None = all L).

        A row of a batch sees its own cache's offset tokens, so no mask is needed.
        """
        raise NotImplementedError("task 2.5.6")

    def takes(self, mask: Mask, num_new_tokens: int) -> bool:
        """Whether `mask` lets a token see exactly the tokens up to itself, as this layer does."""
        raise NotImplementedError("task 2.5.6")
