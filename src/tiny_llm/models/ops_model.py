"""A Qwen on a model's operators: the arithmetic of a layer in a few large pieces.

An operator costs some microseconds to plan, to start and to end, whatever it computes. A step of one token
through 28 layers of dozens of operators each loses more time that way than its attention takes.
"""

from collections.abc import Callable, Sequence

import mlx.core as mx

from tiny_llm_lab.types import NO_CACHE, KernelOps, LayerWeights, Mixer, ModelConfig, Wanted

from ..cache.kv_cache import TinyKvFullCache
from ..cache.memory import Memory
from ..layers.attention import Mask
from ..layers.positional_encoding import RoPE
from .qwen import QwenModel, Weights

Rest = Callable[[mx.array, mx.array], mx.array]


class OpsAttention:
    """The mixer of a layer: its first norm and causal attention, without the projection back."""

    def __init__(self, ops: KernelOps, weights: LayerWeights, head_dim: int, rope: RoPE) -> None:
        """`weights` are those of the layer; heads are `head_dim` wide."""
        raise NotImplementedError("task 2.5.6")

    def __call__(
        self,
        x: mx.array,
        offsets: Sequence[int],
        cache: Memory = NO_CACHE,
        *,
        mask: Mask = "causal",
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """x [B, L, E] at positions `offsets` -> [B, n, H * D], of the last n = `wanted.last` tokens.

        A row sees the tokens that its cache has of it: `mask` is not read.
        """
        raise NotImplementedError("task 2.5.6")

    def create_cache(self) -> TinyKvFullCache:
        """An empty cache on the operators."""
        raise NotImplementedError("task 2.5.6")


class OpsBlock:
    """What `QwenTransformerBlock` computes with a causal mask, by operators."""

    def __init__(self, mixer: Mixer[Memory], rest: Rest) -> None:
        """rest(x, attended): the layer from the projection back to its end, [..., E] -> [..., E]."""
        raise NotImplementedError("task 2.5.6")

    def __call__(
        self,
        x: mx.array,
        offsets: Sequence[int],
        cache: Memory = NO_CACHE,
        *,
        mask: Mask = "causal",
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """As `QwenTransformerBlock`."""
        raise NotImplementedError("task 2.5.6")


class OpsModel(QwenModel):
    """A `QwenModel` on operators, one layer after the other."""

    ops: KernelOps

    def __init__(self, config: ModelConfig, weights: Weights, ops: KernelOps) -> None:
        """As `QwenModel`. Sets `ops`, which model, caches and samplers run on."""
        raise NotImplementedError("task 2.5.6")

    def forward(
        self, tokens: mx.array, offsets: Sequence[int], cache: Sequence[Memory] = (), *, wanted: Wanted
    ) -> mx.array:
        """As `QwenModel.forward`."""
        raise NotImplementedError("task 2.5.6")
