"""Qwen3-Next and Qwen3.5: most layers have a gated delta net, the others attention with an output gate."""

from collections.abc import Sequence
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import (
    NO_CACHE,
    Layer,
    ModelConfig,
    RequestKvCache,
    Wanted,
)

from ..cache.kv_cache import TinyKvFullCache
from ..cache.memory import Memory
from ..cache.paged_attention import PagedLayer
from ..cache.paged_states import HybridKvCache
from ..layers.attention import Mask, scaled_dot_product_attention_grouped
from ..layers.basics import linear
from ..layers.layer_norm import RMSNorm
from ..layers.positional_encoding import RoPE
from ..layers.shared_expert import SharedExpertMoE
from .hybrid_parts import array, below, delta_rule, hybrid_kv_cache, hybrid_of, state_of
from .qwen import AllSum, FeedForward, QwenMLP, QwenModel, QwenTransformerBlock, Weights


class GatedDeltaNet:
    """A mixer whose memory has one size: convolution, gated delta rule, gated norm (arXiv 2412.06464)."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        """`weights` hold in_proj_qkv.weight [C, E] with C = 2 Hk Dk + Hv Dv, in_proj_z.weight [Hv Dv, E],
        in_proj_b.weight and in_proj_a.weight [Hv, E], conv1d.weight [C, K], dt_bias and A_log [Hv],
        norm.weight [Dv] and out_proj.weight [E, Hv Dv].
        """
        self.config, self.weights = config, weights
        self.rule = delta_rule(config, {f"linear_attn.{name}": w for name, w in weights.items()})

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
        batch, length, _ = x.shape
        rows = [
            linear(x, self.weights[f"in_proj_{part}.weight"]).flatten(0, 1) for part in ("qkv", "z", "a", "b")
        ]
        out = state_of(cache, self.config).update(self.rule, rows, batch, length)
        out = out.astype(x.dtype).reshape(batch, length, -1)[:, max(0, length - wanted.last) :]
        return linear(out, self.weights["out_proj.weight"])

    def create_cache(self) -> RequestKvCache:
        """An empty `SequenceState`, which loops treat like any other cache."""
        return cast(RequestKvCache, state_of(NO_CACHE, self.config))


class GatedAttention:
    """Grouped-query attention whose output passes a gate; only some dimensions of a head are rotated."""

    def __init__(self, config: ModelConfig, weights: Weights, rope: RoPE) -> None:
        """`weights` hold q_proj.weight [2 H D, E], for each head queries and then gates, k_proj.weight and
        v_proj.weight [G D, E], o_proj.weight [E, H D], q_norm.weight and k_norm.weight [D]. `rope` rotates
        the first config.hybrid.rotary_dims dimensions of a head.
        """
        self.config, self.weights, self.rope = config, weights, rope
        self.q_norm, self.k_norm = (
            RMSNorm(config.head_dim, array(weights, f"{each}_norm.weight"), config.rms_norm_eps)
            for each in "qk"
        )

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
        start = max(0, x.shape[1] - wanted.last)
        q, gate = mx.split(self._project("q_proj", x[:, start:], 2 * self.config.head_dim), 2, axis=-1)
        k, v = (self._project(name, x, self.config.head_dim) for name in ("k_proj", "v_proj"))
        q = self._rotated(self.q_norm(q), [offset + start for offset in offsets])
        k = self._rotated(self.k_norm(k), offsets)
        q, k, v = (part.transpose(0, 2, 1, 3) for part in (q, k, v))
        if isinstance(cache, PagedLayer):
            out = cache.attend(q, k, v)
        else:
            k, v = cache.update_and_fetch(k, v)
            mask = mask[..., mask.shape[-2] - q.shape[2] :, :] if isinstance(mask, mx.array) else mask
            out = scaled_dot_product_attention_grouped(q, k, v, mask=mask).transpose(0, 2, 1, 3).flatten(2)
        return linear(out * mx.sigmoid(gate.flatten(2)), self.weights["o_proj.weight"])

    def create_cache(self) -> RequestKvCache:
        """An empty `TinyKvFullCache`."""
        return TinyKvFullCache()

    def _project(self, name: str, x: mx.array, width: int) -> mx.array:
        """[B, L, heads, width]"""
        out = linear(x, self.weights[f"{name}.weight"])
        # Not -1 heads, which MLX cannot work out where no token is wanted.
        return out.reshape(*x.shape[:2], out.shape[-1] // width, width)

    def _rotated(self, x: mx.array, offsets: Sequence[int]) -> mx.array:
        dims = hybrid_of(self.config).rotary_dims
        return mx.concatenate([self.rope(x[..., :dims], offsets), x[..., dims:]], axis=-1)


class HybridModel(QwenModel):
    """A `QwenModel` on plain arrays in which a layer's weights say which mixer it has."""

    def layer(self, weights: Weights, rope: RoPE, all_sum: AllSum | None = None) -> Layer[Memory]:
        """One layer as `QwenModel.layer`: with linear_attn.* as `GatedDeltaNet` takes it, or with self_attn.*
        of `GatedAttention`. Experts are those of `SharedExpertMoE`.
        """
        delta_net, config = below("linear_attn", weights), self.config
        mixer = (
            GatedDeltaNet(config, delta_net)
            if delta_net
            else GatedAttention(config, below("self_attn", weights), rope)
        )
        return QwenTransformerBlock(config, weights, mixer, _feed_forward(config, weights), all_sum)

    def create_paged_kv_cache(
        self, num_blocks: int, block_size: int = 16, kv_bits: int | None = None
    ) -> HybridKvCache:
        """A `HybridKvCache` for this model's layers; `kv_bits` are those of the layers with attention."""
        return hybrid_kv_cache(self, num_blocks, block_size, kv_bits)


def _feed_forward(config: ModelConfig, weights: Weights) -> FeedForward:
    own = below("mlp", weights)
    if "gate.weight" in own:
        return SharedExpertMoE(config, own)
    return QwenMLP(*(own[f"{part}_proj.weight"] for part in ("gate", "up", "down")))
