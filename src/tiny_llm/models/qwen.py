"""Qwen2, Qwen2.5 and Qwen3 as one model on plain arrays; the configuration says where they differ."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import KernelOps, ModelConfig, RequestKvCache, Wanted, Weight

from ..layers.attention import Mask
from ..layers.positional_encoding import RoPE
from .weights import Weights


class QwenMultiHeadAttention:
    """Grouped-query self-attention with rotary positions. Qwen2 has a QKV bias, Qwen3 a QK norm."""

    def __init__(self, config: ModelConfig, weights: Weights, rope: RoPE) -> None:
        """`weights` has this block's parameters: q_proj.weight [H * D, E], k_proj.weight [G * D, E],
        v_proj.weight [G * D, E] and o_proj.weight [E, H * D]. With config.qkv_bias it also has q_proj.bias,
        k_proj.bias and v_proj.bias, and with config.qk_norm q_norm.weight and k_norm.weight [D].
        """
        raise NotImplementedError("task 1.5.2")

    def __call__(
        self, x: mx.array, offsets: Sequence[int], *, mask: Mask = "causal", wanted: Wanted = Wanted()
    ) -> mx.array:
        """x [B, L, E], row b at positions offsets[b], ... -> [B, n, E] for the last n = `wanted.last` tokens.

        For each head: project, normalise queries and keys (Qwen3), rotate them, attend, project back. All L
        tokens have keys and values; only the last n have queries (all of them if n is L or more).
        """
        raise NotImplementedError("task 1.5.2")

    def create_cache(self) -> RequestKvCache:
        """Returns an empty `TinyKvFullCache`."""
        raise NotImplementedError("task 2.1.2")


class QwenMLP:
    """The gated feed-forward network SwiGLU (Shazeer 2020, arXiv 2002.05202, eq. 6)."""

    def __init__(self, w_gate: Weight, w_up: Weight, w_down: Weight) -> None:
        """w_gate and w_up are [I, E] and w_down is [E, I], where I is the intermediate size."""
        raise NotImplementedError("task 1.4.3")

    def __call__(self, x: mx.array) -> mx.array:
        """Returns down(silu(gate(x)) * up(x)): [..., E] -> [..., E]."""
        raise NotImplementedError("task 1.4.3")


class QwenTransformerBlock:
    """One layer: a token mixer and a feed-forward, each after a norm and inside a residual connection."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        mixer: QwenMultiHeadAttention,
        mlp: QwenMLP,
    ) -> None:
        """`weights` has two norms [E]: input_layernorm.weight and post_attention_layernorm.weight."""
        raise NotImplementedError("task 1.5.3")

    def __call__(
        self, x: mx.array, offsets: Sequence[int], *, mask: Mask = "causal", wanted: Wanted = Wanted()
    ) -> mx.array:
        """x [B, L, E] at positions `offsets` -> [B, n, E]: x += mixer(norm(x)), then x += mlp(norm(x)).

        After the mixer only the last n = `wanted.last` tokens continue, or all L.
        """
        raise NotImplementedError("task 1.5.3")


class QwenModel:
    """A decoder-only Qwen on plain arrays: embedding, layers, final norm and output head."""

    ops: KernelOps | None = None  # samplers then draw by themselves

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        """`weights` is the whole checkpoint: model.embed_tokens.weight [V, E], model.layers.0.* and so on,
        model.norm.weight [E], and lm_head.weight [V, E] unless config.tie_word_embeddings. A layer has
        self_attn.*, mlp.{gate,up,down}_proj.weight and the norms of its block. Sets config.
        """
        raise NotImplementedError("task 1.5.4")

    def __call__(
        self, tokens: mx.array, offset: int | Sequence[int] = 0, *, wanted: Wanted = Wanted()
    ) -> mx.array:
        """tokens [B, L] int32 at positions `offset`, ... -> logits [B, L, V] in the checkpoint's dtype.

        `offset` is the number of tokens before these: one number for all rows, or one for each. With
        `wanted.last` = n you get only the logits of the last n positions, [B, n, V]; n may be 0 or above L.
        """
        raise NotImplementedError("task 1.5.4")

    def forward(self, tokens: mx.array, offsets: Sequence[int], *, wanted: Wanted) -> mx.array:
        """tokens [B, L] at positions offsets[b], ... -> the wanted logits: `__call__` without its checks."""
        raise NotImplementedError("task 1.5.4")

    def layer(self, weights: Weights, rope: RoPE) -> QwenTransformerBlock:
        """Returns one layer, from its own weights, named as in `__init__` but without model.layers.0.

        The model builds each of its layers by this method. `rope` is shared by all of them.
        """
        raise NotImplementedError("task 1.5.4")

    def create_kv_cache(self) -> list[RequestKvCache]:
        """Returns an empty cache of one request for each layer, as its mixer creates it."""
        raise NotImplementedError("task 2.1.2")
