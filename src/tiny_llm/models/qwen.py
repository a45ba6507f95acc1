"""Qwen2, Qwen2.5 and Qwen3 as one model that reads its differences from the configuration."""

from collections.abc import Mapping

import mlx.core as mx

from tiny_llm_lab.types import Checkpoint, ModelConfig, RequestKvCache, Weight

from ..cache.paged_kv_cache import PagedKvCache
from ..layers.attention import Mask
from ..layers.positional_encoding import RoPE

Weights = Mapping[str, Weight]


class QwenMultiHeadAttention:
    """Grouped-query self-attention with rotary positions: QKV bias in Qwen2, QK norm in Qwen3."""

    def __init__(self, config: ModelConfig, weights: Weights, rope: RoPE) -> None:
        """`weights` hold this block's parameters: q_proj.weight [H * D, E], k_proj.weight [G * D, E],
        v_proj.weight [G * D, E], o_proj.weight [E, H * D]; with config.qkv_bias q_proj.bias, k_proj.bias
        and v_proj.bias; with config.qk_norm q_norm.weight and k_norm.weight [D].
        """
        raise NotImplementedError("task 1.5.2")

    def __call__(self, x: mx.array, offset: int = 0, *, mask: Mask = "causal") -> mx.array:
        """x [B, L, E] at positions `offset`, ... -> [B, L, E].

        Per head: project, normalise queries and keys (Qwen3), rotate them, attend, project back.
        """
        raise NotImplementedError("task 1.5.2")


class QwenMLP:
    """The gated feed-forward network SwiGLU (Shazeer 2020, arXiv 2002.05202, eq. 6)."""

    def __init__(self, w_gate: Weight, w_up: Weight, w_down: Weight) -> None:
        """w_gate and w_up [I, E], w_down [E, I], with I the intermediate size."""
        raise NotImplementedError("task 1.4.3")

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., E] -> [..., E]: down(silu(gate(x)) * up(x))."""
        raise NotImplementedError("task 1.4.3")


class QwenTransformerBlock:
    """One layer: attention and feed-forward, each behind a norm and around a residual."""

    def __init__(self, config: ModelConfig, weights: Weights, rope: RoPE) -> None:
        """`weights` hold this layer's parameters: self_attn.*, mlp.{gate,up,down}_proj.weight,
        input_layernorm.weight and post_attention_layernorm.weight [E].
        """
        raise NotImplementedError("task 1.5.3")

    def __call__(self, x: mx.array, offset: int = 0, *, mask: Mask = "causal") -> mx.array:
        """x [B, L, E] -> [B, L, E]: x += attention(norm(x)), then x += mlp(norm(x))."""
        raise NotImplementedError("task 1.5.3")


class QwenModel:
    """A decoder-only Qwen: embedding, layers, final norm and output head."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        """`weights` hold the whole checkpoint: model.embed_tokens.weight [V, E], model.layers.0.* and so
        on, model.norm.weight [E], and lm_head.weight [V, E] unless config.tie_word_embeddings. Sets config.
        """
        raise NotImplementedError("task 1.5.4")

    def __call__(self, tokens: mx.array, offset: int = 0, *, logits_to_keep: int | None = None) -> mx.array:
        """tokens [B, L] int32 at positions `offset`, ... -> logits [B, L, V] in the checkpoint's dtype.

        `offset` counts the tokens before these. `logits_to_keep=n` returns only the last n positions,
        [B, n, V], and computes no logits of the others; 0 is allowed.
        """
        raise NotImplementedError("task 1.5.4")

    def stack_layers(self) -> None:
        """From now on compute all layers in one operator where there is one: sets `stack`."""
        raise NotImplementedError("task 3.2.6")

    def create_kv_cache(self) -> list[RequestKvCache]:
        """One empty `TinyKvFullCache` per layer."""
        raise NotImplementedError("task 2.1.2")

    def create_paged_kv_cache(
        self, num_blocks: int, block_size: int = 16, kv_bits: int | None = None
    ) -> PagedKvCache:
        """A `PagedKvCache` for this model's layers, of 8 bits or in its norms' dtype."""
        raise NotImplementedError("task 3.2.2")


def build_model(checkpoint: Checkpoint) -> QwenModel:
    """The model of a loaded checkpoint."""
    raise NotImplementedError("task 1.5.4")
