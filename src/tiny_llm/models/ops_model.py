"""A Qwen on a model's operators, which compute a layer in a few large pieces.

Every operator costs a few microseconds to plan, start and end, whatever it computes. In a step of one token
through 28 layers with dozens of operators each, that takes longer than the attention.
"""

from collections.abc import Callable, Sequence

import mlx.core as mx

from tiny_llm_lab.types import NO_CACHE, KernelOps, Layer, LayerWeights, Mixer, ModelConfig, Wanted

from ..cache.kv_cache import TinyKvFullCache
from ..cache.memory import Memory
from ..layers.attention import Mask
from ..layers.positional_encoding import RoPE
from .qwen import QwenModel, Weights

Rest = Callable[[mx.array, mx.array], mx.array]


class OpsAttention:
    """The mixer of a layer: its first norm and causal attention, without the output projection."""

    def __init__(self, ops: KernelOps, weights: LayerWeights, head_dim: int, rope: RoPE) -> None:
        """`weights` belong to the layer; heads are `head_dim` wide."""
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
        """x [B, L, E] at positions `offsets` -> [B, n, H * D] for the last n = `wanted.last` tokens.

        A row sees the tokens that its cache stores for it, so `mask` is ignored.
        """
        raise NotImplementedError("task 2.5.6")

    def create_cache(self) -> TinyKvFullCache:
        """Returns an empty cache on the operators."""
        raise NotImplementedError("task 2.5.6")


class OpsBlock:
    """Computes what `QwenTransformerBlock` computes with a causal mask, on operators."""

    def __init__(self, mixer: Mixer[Memory], rest: Rest) -> None:
        """rest(x, attended) is the layer from the output projection to its end, [..., E] -> [..., E]."""
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
        """Like `QwenTransformerBlock`."""
        raise NotImplementedError("task 2.5.6")


class OpsModel(QwenModel):
    """A `QwenModel` on operators, one layer at a time."""

    ops: KernelOps

    def __init__(self, config: ModelConfig, weights: Weights, ops: KernelOps) -> None:
        """Like `QwenModel`. Sets `ops`, which the model, its caches and its samplers run on.

        `weights` may be in blocks, see `QuantizedWeights`: then nothing but `ops` reads them.
        """
        raise NotImplementedError("task 2.5.6")

    def layer(self, weights: Weights, rope: RoPE) -> Layer[Memory]:
        """Returns one layer on the operators, an `OpsBlock`; parameters as of `QwenModel.layer`."""
        raise NotImplementedError("task 2.5.6")

    def forward(
        self, tokens: mx.array, offsets: Sequence[int], cache: Sequence[Memory] = (), *, wanted: Wanted
    ) -> mx.array:
        """Like `QwenModel.forward`."""
        raise NotImplementedError("task 2.5.6")
