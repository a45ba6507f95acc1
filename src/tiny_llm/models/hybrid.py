"""Qwen3-Next and Qwen3.5: most layers have a gated delta net, the others attention with an output gate."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import (
    NO_CACHE,
    Layer,
    ModelConfig,
    RequestKvCache,
    Wanted,
)

from ..cache.memory import Memory
from ..cache.paged_states import HybridKvCache
from ..layers.attention import Mask
from ..layers.positional_encoding import RoPE
from .qwen import AllSum, QwenModel, Weights


class GatedDeltaNet:
    """A mixer whose memory has one size: convolution, gated delta rule, gated norm (arXiv 2412.06464)."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        """`weights` hold in_proj_qkv.weight [C, E] with C = 2 Hk Dk + Hv Dv, in_proj_z.weight [Hv Dv, E],
        in_proj_b.weight and in_proj_a.weight [Hv, E], conv1d.weight [C, K], dt_bias and A_log [Hv],
        norm.weight [Dv] and out_proj.weight [E, Hv Dv].
        """
        raise NotImplementedError("task 4.3.3")

    def __call__(
        self,
        x: mx.array,
        offsets: Sequence[int],
        cache: Memory = NO_CACHE,
        *,
        mask: Mask = "causal",
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """x [B, L, E] -> [B, n, E], of the last n = `wanted.last` tokens; all L go into the state.

        The cache holds states, or remembers nothing; `offsets` and `mask` are not read. Between the
        projections all is float32, and rounded once.
        """
        raise NotImplementedError("task 4.3.3")

    def create_cache(self) -> RequestKvCache:
        """An empty `SequenceState`, which loops treat like any other cache."""
        raise NotImplementedError("task 4.3.3")


class GatedAttention:
    """Grouped-query attention whose output passes a gate; only some dimensions of a head are rotated."""

    def __init__(self, config: ModelConfig, weights: Weights, rope: RoPE) -> None:
        """`weights` hold q_proj.weight [2 H D, E], for each head queries and then gates, k_proj.weight and
        v_proj.weight [G D, E], o_proj.weight [E, H D], q_norm.weight and k_norm.weight [D]. `rope` rotates
        the first config.hybrid.rotary_dims dimensions of a head.
        """
        raise NotImplementedError("task 4.3.4")

    def __call__(
        self,
        x: mx.array,
        offsets: Sequence[int],
        cache: Memory = NO_CACHE,
        *,
        mask: Mask = "causal",
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """As `QwenMultiHeadAttention`: x [B, L, E] -> [B, n, E].

        What a head attends to is multiplied by the sigmoid of its gates, before the projection back.
        """
        raise NotImplementedError("task 4.3.4")

    def create_cache(self) -> RequestKvCache:
        """An empty `TinyKvFullCache`."""
        raise NotImplementedError("task 4.3.4")


class HybridModel(QwenModel):
    """A `QwenModel` on plain arrays in which a layer's weights say which mixer it has."""

    def layer(self, weights: Weights, rope: RoPE, all_sum: AllSum | None = None) -> Layer[Memory]:
        """One layer as `QwenModel.layer`: with linear_attn.* as `GatedDeltaNet` takes it, or with self_attn.*
        of `GatedAttention`. Experts are those of `SharedExpertMoE`.
        """
        raise NotImplementedError("task 4.3.6")

    def create_paged_kv_cache(
        self, num_blocks: int, block_size: int = 16, kv_bits: int | None = None
    ) -> HybridKvCache:
        """A `HybridKvCache` for this model's layers; `kv_bits` are those of the layers with attention."""
        raise NotImplementedError("task 4.3.6")
