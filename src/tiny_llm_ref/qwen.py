"""Qwen2, Qwen2.5 and Qwen3 as one model that reads its differences from the configuration."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import mlx.core as mx

from tiny_llm_lab.native import kernels
from tiny_llm_lab.types import Checkpoint, KvCache, ModelConfig, QuantizedWeights, RequestKvCache, Weight

from .attention import Mask, scaled_dot_product_attention_grouped
from .basics import linear, silu
from .embedding import Embedding
from .kv_cache import TinyKvFullCache
from .layer_norm import RMSNorm
from .positional_encoding import RoPE

Weights = Mapping[str, Weight]
_PROJECTIONS = ("q_proj", "k_proj", "v_proj")


class QwenMultiHeadAttention:
    """Grouped-query self-attention with rotary positions: QKV bias in Qwen2, QK norm in Qwen3."""

    def __init__(self, config: ModelConfig, weights: Weights, rope: RoPE) -> None:
        """`weights` hold this block's parameters: q_proj.weight [H * D, E], k_proj.weight [G * D, E],
        v_proj.weight [G * D, E], o_proj.weight [E, H * D]; with config.qkv_bias q_proj.bias, k_proj.bias
        and v_proj.bias; with config.qk_norm q_norm.weight and k_norm.weight [D].
        """
        self.config = config
        self.weights = weights
        self.rope = rope
        self._qkv = [weights[f"{name}.weight"] for name in _PROJECTIONS]
        self._biases = [_vector(weights, name, "bias") if config.qkv_bias else None for name in _PROJECTIONS]
        self._is_uniform = _are_alike(self._qkv)
        self._scale = 1 / math.sqrt(config.head_dim)
        self.q_norm = self.k_norm = None
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, _vector(weights, "q_norm"), config.rms_norm_eps)
            self.k_norm = RMSNorm(config.head_dim, _vector(weights, "k_norm"), config.rms_norm_eps)

    def __call__(
        self,
        x: mx.array,
        offset: int | list[int] = 0,
        cache: KvCache | None = None,
        mask: Mask = "causal",
        keep: int | None = None,
    ) -> mx.array:
        """x [B, L, E] at positions `offset`, ... -> [B, keep, E], of the last `keep` tokens (None = all L).

        Per head: project, normalise queries and keys (Qwen3), rotate them, attend, project back. With
        a cache (from day 2.1 on) the new keys and values are appended and all stored ones attended to:
        all L of them, while queries exist for the last `keep` alone.
        """
        length = x.shape[1]
        kept = length if keep is None else min(keep, length)
        native = kernels(__package__)
        if native and kept == length and self._is_uniform:
            q, k, v = self._heads(native, x, offset)
        else:
            q, k, v = self._plain_heads(x, offset, kept)
        if cache is not None:
            k, v = cache.update_and_fetch(k, v)
        if native and not isinstance(mask, mx.array):
            stored = length if cache is None else cache.offset
            out = native.attention(q, k, v, stored, True, self._scale, True)
        else:
            rows = mask[..., mask.shape[-2] - kept :, :] if isinstance(mask, mx.array) else mask
            out = scaled_dot_product_attention_grouped(q, k, v, mask=rows).transpose(0, 2, 1, 3).flatten(2)
        return linear(out, self.weights["o_proj.weight"])

    def _heads(self, native: Any, x: mx.array, offset: int | list[int]) -> list[mx.array]:
        """Queries, keys and values [B, heads, L, D] in one operator."""
        rope, q_norm, k_norm = self.rope, self.q_norm, self.k_norm
        norms = (
            (None, None, 0.0)
            if q_norm is None or k_norm is None
            else (q_norm.weight, k_norm.weight, q_norm.eps)
        )
        heads = native.heads(x, self._qkv, self._biases, *norms, rope.cos, rope.sin, rope.traditional, offset)
        return cast(list[mx.array], heads)

    def _plain_heads(self, x: mx.array, offset: int | list[int], kept: int) -> list[mx.array]:
        """The same a step at a time; queries only for the last `kept` tokens."""
        start, dim = x.shape[1] - kept, self.config.head_dim
        last_offset = offset + start if isinstance(offset, int) else [row + start for row in offset]
        parts = [(x[:, start:], self.q_norm, last_offset), (x, self.k_norm, offset), (x, None, None)]
        heads = []
        for (part, norm, place), w, bias in zip(parts, self._qkv, self._biases, strict=True):
            y = linear(part, w, bias)
            y = y.reshape(*y.shape[:2], y.shape[2] // dim, dim)
            y = y if place is None else self._place(y, norm, place)
            heads.append(y.transpose(0, 2, 1, 3))
        return heads

    def _place(self, x: mx.array, norm: RMSNorm | None, offset: int | list[int]) -> mx.array:
        """Normalise the heads of x [B, L, heads, D], if there is a norm, and rotate them."""
        rope, native = self.rope, kernels(__package__)
        if norm is None or native is None:
            return rope(x if norm is None else norm(x), offset)
        # In one go, as `_heads` does it: rounding in between would tell the last layer's rows apart.
        return cast(
            mx.array, native.rope(x, offset, rope.cos, rope.sin, rope.traditional, norm.weight, norm.eps)
        )


class QwenMLP:
    """The gated feed-forward network SwiGLU (Shazeer 2020, arXiv 2002.05202, eq. 6)."""

    def __init__(self, w_gate: Weight, w_up: Weight, w_down: Weight) -> None:
        """w_gate and w_up [I, E], w_down [E, I], with I the intermediate size."""
        self.w_gate, self.w_up, self.w_down = w_gate, w_up, w_down
        self._is_uniform = _are_alike([w_gate, w_up]) and _are_alike([w_down])

    def __call__(self, x: mx.array, residual: mx.array | None = None) -> mx.array:
        """x [..., E] -> [..., E]: down(silu(gate(x)) * up(x)), plus `residual` [..., E] if there is one."""
        native = kernels(__package__)
        if native and residual is not None and self._is_uniform:
            return cast(mx.array, native.mlp(x, self.w_gate, self.w_up, self.w_down, residual))
        out = linear(silu(linear(x, self.w_gate)) * linear(x, self.w_up), self.w_down)
        return out if residual is None else residual + out


class QwenTransformerBlock:
    """One layer: attention and feed-forward, each behind a norm and around a residual."""

    def __init__(self, config: ModelConfig, weights: Weights, rope: RoPE) -> None:
        """`weights` hold this layer's parameters: self_attn.*, mlp.{gate,up,down}_proj.weight,
        input_layernorm.weight and post_attention_layernorm.weight [E].
        """
        size, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = QwenMultiHeadAttention(config, _below("self_attn.", weights), rope)
        self.mlp = QwenMLP(*(weights[f"mlp.{part}_proj.weight"] for part in ("gate", "up", "down")))
        self.input_layernorm = RMSNorm(size, _vector(weights, "input_layernorm"), eps)
        self.post_attention_layernorm = RMSNorm(size, _vector(weights, "post_attention_layernorm"), eps)

    def __call__(
        self,
        x: mx.array,
        offset: int | list[int] = 0,
        cache: KvCache | None = None,
        mask: Mask = "causal",
        keep: int | None = None,
    ) -> mx.array:
        """x [B, L, E] -> [B, keep, E], the last `keep` tokens (None = all L).

        x += attention(norm(x)), then x += mlp(norm(x)); the cache gets all L tokens.
        """
        out = self.self_attn(self.input_layernorm(x), offset, cache, mask, keep)
        x, normed = self._add_and_norm(x if keep is None else x[:, x.shape[1] - out.shape[1] :], out)
        return self.mlp(normed, x)

    def _add_and_norm(self, x: mx.array, delta: mx.array) -> tuple[mx.array, mx.array]:
        norm = self.post_attention_layernorm
        if native := kernels(__package__):
            return cast(tuple[mx.array, mx.array], native.rms_norm(x, norm.weight, norm.eps, delta))
        return x + delta, norm(x + delta)


class QwenModel:
    """A decoder-only Qwen: embedding, layers, final norm and output head."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        """`weights` hold the whole checkpoint: model.embed_tokens.weight [V, E], model.layers.0.* and so
        on, model.norm.weight [E], and lm_head.weight [V, E] unless config.tie_word_embeddings.
        """
        self.config = config
        # One table serves all layers: the angles depend on the position alone.
        rope = RoPE(config.head_dim, config.max_position_embeddings, config.rope_theta)
        self.embed_tokens = Embedding(
            config.vocab_size, config.hidden_size, weights["model.embed_tokens.weight"]
        )
        self.layers = [
            QwenTransformerBlock(config, _below(f"model.layers.{i}.", weights), rope)
            for i in range(config.num_hidden_layers)
        ]
        self.norm = RMSNorm(config.hidden_size, _vector(weights, "model.norm"), config.rms_norm_eps)
        self.lm_head = None if config.tie_word_embeddings else weights["lm_head.weight"]

    def __call__(
        self,
        tokens: mx.array,
        offset: int | list[int] = 0,
        cache: Sequence[KvCache] | None = None,
        logits_to_keep: int | None = None,
    ) -> mx.array:
        """tokens [B, L] int32 at positions `offset`, ... -> logits [B, L, V] in the checkpoint's dtype.

        `offset` counts the tokens that stand before: one number, or one per row (from day 2.6 on).
        `cache` holds one cache per layer and is extended; None computes from `tokens` alone.
        `logits_to_keep=n` returns only the last n positions, [B, n, V], and spends nothing on the
        others; 0 is allowed. Raises ValueError when `offset` is not what the cache holds.
        """
        length = tokens.shape[1]
        if cache is not None and cache[0].offset != offset:
            raise ValueError(f"offset {offset} does not match a cache of {cache[0].offset} tokens")
        # The kernels count each row's tokens themselves.
        is_plain = cache is None or kernels(__package__)
        mask: Mask = "causal" if is_plain else cast(Sequence[KvCache], cache)[0].attention_mask(length)
        x = self.embed_tokens(tokens)
        for i, layer in enumerate(self.layers):
            # Behind the last layer's keys and values nobody looks at a token without logits.
            keep = logits_to_keep if i == len(self.layers) - 1 else None
            x = layer(x, offset, None if cache is None else cache[i], mask, keep)
        x = self.norm(x)
        return self.embed_tokens.as_linear(x) if self.lm_head is None else linear(x, self.lm_head)

    def create_kv_cache(self) -> list[RequestKvCache]:
        """One empty `TinyKvFullCache` per layer."""
        return [TinyKvFullCache() for _ in self.layers]


def build_model(checkpoint: Checkpoint) -> QwenModel:
    """The model of a loaded checkpoint."""
    return QwenModel(checkpoint.config, checkpoint.weights)


def _are_alike(weights: Sequence[Weight]) -> bool:
    """Whether the kernels can multiply with all of them at once: packed in the same 4 or 8 bits, or dense."""
    packings = {(w.bits, w.group_size) if isinstance(w, QuantizedWeights) else (0, 0) for w in weights}
    return len(packings) == 1 and packings <= {(b, g) for b in (4, 8) for g in (32, 64, 128)} | {(0, 0)}


def _vector(weights: Weights, module: str, kind: str = "weight") -> mx.array:
    """A norm's weight or a projection's bias: never quantized."""
    vector = weights[f"{module}.{kind}"]
    assert isinstance(vector, mx.array)
    return vector


def _below(prefix: str, weights: Weights) -> Weights:
    """The weights whose names start with `prefix`, without it."""
    return {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
