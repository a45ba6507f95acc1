"""Qwen2, Qwen2.5 and Qwen3 as one model that reads its differences from the configuration."""

from collections.abc import Mapping, Sequence
from typing import cast

import mlx.core as mx

from tiny_llm_lab.runtime.native import kernels
from tiny_llm_lab.types import Checkpoint, KernelOps, KvCache, LayerStack, ModelConfig, RequestKvCache, Weight

from ..cache.kv_cache import TinyKvFullCache
from ..cache.paged_attention import PagedLayer
from ..cache.paged_kv_cache import PagedKvCache
from ..layers.attention import Mask, scaled_dot_product_attention_grouped
from ..layers.basics import linear, silu
from ..layers.embedding import Embedding
from ..layers.layer_norm import RMSNorm
from ..layers.moe import QwenMoE
from ..layers.positional_encoding import RoPE
from .fused import AllSum, FusedLayer
from .stacked import stack_of, stacked

Weights = Mapping[str, Weight]


class QwenMultiHeadAttention:
    """Grouped-query self-attention with rotary positions: QKV bias in Qwen2, QK norm in Qwen3."""

    def __init__(self, config: ModelConfig, weights: Weights, rope: RoPE) -> None:
        """`weights` hold this block's parameters: q_proj.weight [H * D, E], k_proj.weight [G * D, E],
        v_proj.weight [G * D, E], o_proj.weight [E, H * D]; with config.qkv_bias q_proj.bias, k_proj.bias
        and v_proj.bias; with config.qk_norm q_norm.weight and k_norm.weight [D].
        """
        self.config, self.weights, self.rope = config, weights, rope
        self.q_norm = self.k_norm = None
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, _vector(weights, "q_norm"), config.rms_norm_eps)
            self.k_norm = RMSNorm(config.head_dim, _vector(weights, "k_norm"), config.rms_norm_eps)

    def __call__(
        self,
        x: mx.array,
        offset: int | list[int] = 0,
        cache: KvCache | PagedLayer | None = None,
        *,
        mask: Mask = "causal",
        keep: int | None = None,
    ) -> mx.array:
        """x [B, L, E] at positions `offset`, ... -> [B, L, E].

        Per head: project, normalise queries and keys (Qwen3), rotate them, attend, project back.
        From task 2.1.2 on: with a `cache` the new keys and values are appended and all stored ones attended
        to. With `keep` only the last `keep` tokens have queries, -> [B, keep, E]; None keeps all L.
        From task 2.6.1 on: `offset` may be a list, one number per row.
        From task 3.2.2 on: the cache may be a `PagedLayer`, which stores and attends by itself.
        """
        start = 0 if keep is None else max(0, x.shape[1] - keep)
        q = self._project("q_proj", x[:, start:])
        k, v = self._project("k_proj", x), self._project("v_proj", x)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q_offset = offset + start if isinstance(offset, int) else [row + start for row in offset]
        q, k = self.rope(q, q_offset), self.rope(k, offset)
        q, k, v = (part.transpose(0, 2, 1, 3) for part in (q, k, v))
        if isinstance(cache, PagedLayer):
            return linear(cache.attend(q, k, v), self.weights["o_proj.weight"])
        if cache is not None:
            k, v = cache.update_and_fetch(k, v)
        mask = mask[..., mask.shape[-2] - q.shape[2] :, :] if isinstance(mask, mx.array) else mask
        out = scaled_dot_product_attention_grouped(q, k, v, mask=mask)
        return linear(out.transpose(0, 2, 1, 3).flatten(2), self.weights["o_proj.weight"])

    def _project(self, name: str, x: mx.array) -> mx.array:
        """[B, L, heads, D]"""
        bias = _vector(self.weights, name, "bias") if self.config.qkv_bias else None
        out = linear(x, self.weights[f"{name}.weight"], bias)
        dim = self.config.head_dim
        return out.reshape(*x.shape[:2], out.shape[2] // dim, dim)


class QwenMLP:
    """The gated feed-forward network SwiGLU (Shazeer 2020, arXiv 2002.05202, eq. 6)."""

    def __init__(self, w_gate: Weight, w_up: Weight, w_down: Weight) -> None:
        """w_gate and w_up [I, E], w_down [E, I], with I the intermediate size."""
        self.w_gate, self.w_up, self.w_down = w_gate, w_up, w_down

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., E] -> [..., E]: down(silu(gate(x)) * up(x))."""
        return linear(silu(linear(x, self.w_gate)) * linear(x, self.w_up), self.w_down)


class QwenTransformerBlock:
    """One layer: attention and feed-forward, each behind a norm and around a residual."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        rope: RoPE,
        ops: KernelOps | None = None,
        all_sum: AllSum | None = None,
    ) -> None:
        """`weights` hold this layer's parameters: self_attn.*, mlp.{gate,up,down}_proj.weight,
        input_layernorm.weight and post_attention_layernorm.weight [E].

        From task 2.5.6 on: `ops`, where there are any, compute the layer where the mask is causal.
        From task 3.9.2 on: a layer with mlp.gate.weight has experts, and those of `QwenMoE` below mlp.
        From task 3.9.4 on: `all_sum` adds up over all ranks what attention and the feed-forward give.
        """
        size, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = QwenMultiHeadAttention(config, _below("self_attn.", weights), rope)
        self.mlp = _feed_forward(config, _below("mlp.", weights), ops)
        self.input_layernorm = RMSNorm(size, _vector(weights, "input_layernorm"), eps)
        self.post_attention_layernorm = RMSNorm(size, _vector(weights, "post_attention_layernorm"), eps)
        self.all_sum = all_sum or (lambda part: part)
        self.fused = None if ops is None else FusedLayer(ops, config, weights, rope, self.mlp, all_sum)

    def __call__(
        self,
        x: mx.array,
        offset: int | list[int] = 0,
        cache: KvCache | PagedLayer | None = None,
        *,
        mask: Mask = "causal",
        keep: int | None = None,
        rows: mx.array | None = None,
    ) -> mx.array:
        """x [B, L, E] -> [B, L, E]: x += attention(norm(x)), then x += mlp(norm(x)).

        From task 2.1.2 on: the `cache` gets all L tokens; only the last `keep` go on, -> [B, keep, E].
        From task 2.6.1 on: `offset` may be a list, as in `QwenMultiHeadAttention`.
        From task 3.2.2 on: the cache may be paged; only these `rows` (int32) go on, -> [len(rows), keep, E].
        """
        if self.fused is not None and self.fused.takes(mask, x.shape[1]):
            return self.fused(x, offset, cache, keep, rows)
        start = 0 if keep is None else max(0, x.shape[1] - keep)
        out = self.all_sum(self.self_attn(self.input_layernorm(x), offset, cache, mask=mask, keep=keep))
        x = x[:, start:]
        if rows is not None:
            x, out = x[rows], out[rows]
        x = x + out
        return x + self.all_sum(self.mlp(self.post_attention_layernorm(x)))


class QwenModel:
    """A decoder-only Qwen: embedding, layers, final norm and output head."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        ops: KernelOps | None = None,
        all_sum: AllSum | None = None,
    ) -> None:
        """`weights` hold the whole checkpoint: model.embed_tokens.weight [V, E], model.layers.0.* and so
        on, model.norm.weight [E], and lm_head.weight [V, E] unless config.tie_word_embeddings. Sets config.

        From task 2.5.6 on: sets `ops`, the operators that model, caches and samplers run on; None: none.
        From task 3.2.6 on: sets `stack`, for all layers as one operator, to None; see `stack_layers`.
        From task 3.9.4 on: with `all_sum` the layers hold one rank's part of their weights.
        """
        self.config, self.ops = config, ops
        positions, table = config.max_position_embeddings, weights["model.embed_tokens.weight"]
        # One table serves all layers: the angles depend on the position alone.
        rope = RoPE(config.head_dim, positions, config.rope_theta, scaling=config.rope_scaling)
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, table)
        blocks = [_below(f"model.layers.{i}.", weights) for i in range(config.num_hidden_layers)]
        self.layers = [QwenTransformerBlock(config, block, rope, ops, all_sum) for block in blocks]
        self.stack: LayerStack | None = None
        self.norm = RMSNorm(config.hidden_size, _vector(weights, "model.norm"), config.rms_norm_eps)
        self.lm_head = None if config.tie_word_embeddings else weights["lm_head.weight"]

    def __call__(
        self,
        tokens: mx.array,
        offset: int | list[int] = 0,
        cache: Sequence[KvCache | PagedLayer] | None = None,
        *,
        logits_to_keep: int | None = None,
        rows: Sequence[int] | None = None,
    ) -> mx.array:
        """tokens [B, L] int32 at positions `offset`, ... -> logits [B, L, V] in the checkpoint's dtype.

        `offset` counts the tokens before these. `logits_to_keep=n` returns only the last n positions,
        [B, n, V], and computes no logits of the others; 0 is allowed.
        From task 2.1.2 on: `cache` holds one cache per layer and is extended; None computes from `tokens`
        alone. Raises ValueError when `offset` is not what the cache holds.
        From task 2.6.1 on: `offset` may be a list, one number per row.
        From task 3.2.2 on: `rows` returns only these rows of the batch, in their order, [len(rows), L, V],
        and computes keys and values only of the others; an empty list is allowed. The caches may be paged.
        """
        (batch, length), ops, table = tokens.shape, self.ops, self.embed_tokens.weight
        if cache is not None and cache[0].offset != offset:
            raise ValueError(f"offset {offset} does not match a cache of {cache[0].offset} tokens")
        # Operators count each row's tokens themselves.
        mask: Mask = "causal" if cache is None or ops is not None else cache[0].attention_mask(length)
        rows = None if rows is None or list(rows) == list(range(batch)) else list(rows)  # all: only a copy
        chosen = None if rows is None else mx.array(rows, mx.int32)
        x = self.embed_tokens(tokens) if ops is None else ops.embedding(tokens, table)
        hidden = None if self.stack is None else stacked(self.stack, x, cache, logits_to_keep, rows)
        for i, layer in enumerate(self.layers if hidden is None else ()):
            # A token without logits is needed for the last layer's keys and values only.
            keep, picked = (logits_to_keep, chosen) if i == len(self.layers) - 1 else (None, None)
            x = layer(x, offset, None if cache is None else cache[i], mask=mask, keep=keep, rows=picked)
            if ops is not None and ops.starts_early and i % 4 == 0 and i + 1 < len(self.layers):
                mx.async_eval(x)  # the operators begin while Python still plans the layers behind
        if ops is not None:
            normed = ops.rms_norm(x if hidden is None else hidden, self.norm.weight, self.norm.eps)[1]
            return ops.linear(normed, [table if self.lm_head is None else self.lm_head])[0]
        x = self.norm(x)
        return self.embed_tokens.as_linear(x) if self.lm_head is None else linear(x, self.lm_head)

    def stack_layers(self) -> None:
        """From now on compute all layers in one operator where there is one: sets `stack`."""
        self.stack = stack_of([layer.fused for layer in self.layers])

    def create_kv_cache(self) -> list[RequestKvCache]:
        """One empty `TinyKvFullCache` per layer."""
        return [TinyKvFullCache(self.ops) for _ in self.layers]

    def create_paged_kv_cache(
        self, num_blocks: int, block_size: int = 16, kv_bits: int | None = None
    ) -> PagedKvCache:
        """A `PagedKvCache` for this model's layers, of 8 bits or in its norms' dtype."""
        return PagedKvCache(self.config, num_blocks, block_size, self.norm.weight.dtype, kv_bits, self.ops)


def build_model(checkpoint: Checkpoint) -> QwenModel:
    """The model of a loaded checkpoint.

    From task 2.5.6 on: it runs on the operators that `kernels` gives.
    """
    return QwenModel(checkpoint.config, checkpoint.weights, ops=kernels(__package__, checkpoint.weights))


def _vector(weights: Weights, module: str, kind: str = "weight") -> mx.array:
    """A norm's weight or a projection's bias: never quantized."""
    return cast(mx.array, weights[f"{module}.{kind}"])


def _feed_forward(config: ModelConfig, weights: Weights, ops: KernelOps | None) -> QwenMLP | QwenMoE:
    if "gate.weight" in weights:
        return QwenMoE(config, weights, ops)
    return QwenMLP(*(weights[f"{part}_proj.weight"] for part in ("gate", "up", "down")))


def _below(prefix: str, weights: Weights) -> Weights:
    """The weights whose names start with `prefix`, without it."""
    return {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
