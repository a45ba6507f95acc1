"""Qwen2, Qwen2.5 and Qwen3 as one model on plain arrays; the configuration says where they differ."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import NO_CACHE, KernelOps, Memory, ModelConfig, RequestKvCache, Wanted, Weight

from ..cache.kv_cache import TinyKvFullCache
from ..layers.attention import Mask, scaled_dot_product_attention_grouped
from ..layers.basics import linear, silu
from ..layers.embedding import Embedding
from ..layers.layer_norm import RMSNorm
from ..layers.positional_encoding import RoPE
from .weights import Weights, array, below


class QwenMultiHeadAttention:
    """Grouped-query self-attention with rotary positions. Qwen2 has a QKV bias, Qwen3 a QK norm."""

    def __init__(self, config: ModelConfig, weights: Weights, rope: RoPE) -> None:
        """`weights` has this block's parameters: q_proj.weight [H * D, E], k_proj.weight [G * D, E],
        v_proj.weight [G * D, E] and o_proj.weight [E, H * D]. With config.qkv_bias it also has q_proj.bias,
        k_proj.bias and v_proj.bias, and with config.qk_norm q_norm.weight and k_norm.weight [D].
        """
        self.config, self.weights, self.rope = config, weights, rope
        self.q_norm = self.k_norm = None
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, array(weights, "q_norm.weight"), config.rms_norm_eps)
            self.k_norm = RMSNorm(config.head_dim, array(weights, "k_norm.weight"), config.rms_norm_eps)

    def __call__(
        self,
        x: mx.array,
        offsets: Sequence[int],
        cache: Memory = NO_CACHE,
        *,
        mask: Mask = "causal",
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """x [B, L, E], row b at positions offsets[b], ... -> [B, n, E] for the last n = `wanted.last` tokens.

        For each head: project, normalise queries and keys (Qwen3), rotate them, attend, project back. All L
        tokens have keys and values; only the last n have queries (all of them if n is L or more).
        From task 2.1.2 on: appends the new keys and values to `cache` and attends to all that it stores.
        """
        start = max(0, x.shape[1] - wanted.last)
        q = self._project("q_proj", x[:, start:])
        k, v = self._project("k_proj", x), self._project("v_proj", x)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = self.rope(q, [offset + start for offset in offsets]), self.rope(k, offsets)
        q, k, v = (part.transpose(0, 2, 1, 3) for part in (q, k, v))
        k, v = cache.update_and_fetch(k, v)
        mask = mask[..., mask.shape[-2] - q.shape[2] :, :] if isinstance(mask, mx.array) else mask
        out = scaled_dot_product_attention_grouped(q, k, v, mask=mask)
        return linear(out.transpose(0, 2, 1, 3).flatten(2), self.weights["o_proj.weight"])

    def create_cache(self) -> RequestKvCache:
        """Returns an empty `TinyKvFullCache`."""
        return TinyKvFullCache()

    def _project(self, name: str, x: mx.array) -> mx.array:
        """Returns [B, L, heads, D]."""
        bias = array(self.weights, f"{name}.bias") if self.config.qkv_bias else None
        out = linear(x, self.weights[f"{name}.weight"], bias)
        dim = self.config.head_dim
        return out.reshape(*x.shape[:2], out.shape[2] // dim, dim)


class QwenMLP:
    """The gated feed-forward network SwiGLU (Shazeer 2020, arXiv 2002.05202, eq. 6)."""

    def __init__(self, w_gate: Weight, w_up: Weight, w_down: Weight) -> None:
        """w_gate and w_up are [I, E] and w_down is [E, I], where I is the intermediate size."""
        self.w_gate, self.w_up, self.w_down = w_gate, w_up, w_down

    def __call__(self, x: mx.array) -> mx.array:
        """Returns down(silu(gate(x)) * up(x)): [..., E] -> [..., E]."""
        return linear(silu(linear(x, self.w_gate)) * linear(x, self.w_up), self.w_down)


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
        size, eps = config.hidden_size, config.rms_norm_eps
        self.mixer, self.mlp = mixer, mlp
        self.input_layernorm = RMSNorm(size, array(weights, "input_layernorm.weight"), eps)
        second = array(weights, "post_attention_layernorm.weight")
        self.post_attention_layernorm = RMSNorm(size, second, eps)

    def __call__(
        self,
        x: mx.array,
        offsets: Sequence[int],
        cache: Memory = NO_CACHE,
        *,
        mask: Mask = "causal",
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """x [B, L, E] at positions `offsets` -> [B, n, E]: x += mixer(norm(x)), then x += mlp(norm(x)).

        After the mixer only the last n = `wanted.last` tokens continue, or all L.
        From task 2.1.2 on: `cache` stores all L tokens.
        """
        out = self.mixer(self.input_layernorm(x), offsets, cache, mask=mask, wanted=wanted)
        x = x[:, max(0, x.shape[1] - wanted.last) :] + out
        return x + self.mlp(self.post_attention_layernorm(x))


class QwenModel:
    """A decoder-only Qwen on plain arrays: embedding, layers, final norm and output head."""

    ops: KernelOps | None = None  # samplers then draw by themselves

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        """`weights` is the whole checkpoint: model.embed_tokens.weight [V, E], model.layers.0.* and so on,
        model.norm.weight [E], and lm_head.weight [V, E] unless config.tie_word_embeddings. A layer has
        self_attn.*, mlp.{gate,up,down}_proj.weight and the norms of its block. Sets config.
        """
        self.config = config
        sizes, positions = (config.vocab_size, config.hidden_size), config.max_position_embeddings
        # All layers share one table, because the angles depend only on the position.
        rope = RoPE(config.head_dim, positions, config.rope_theta, scaling=config.rope_scaling)
        self.embed_tokens = Embedding(*sizes, weights["model.embed_tokens.weight"])
        blocks = [below(f"model.layers.{i}", weights) for i in range(config.num_hidden_layers)]
        self.layers = [self.layer(block, rope) for block in blocks]
        self.norm = RMSNorm(config.hidden_size, array(weights, "model.norm.weight"), config.rms_norm_eps)
        is_tied = config.tie_word_embeddings
        self.head = self.embed_tokens if is_tied else Embedding(*sizes, weights["lm_head.weight"])

    def __call__(
        self,
        tokens: mx.array,
        offset: int | Sequence[int] = 0,
        cache: Sequence[Memory] | None = None,
        *,
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """tokens [B, L] int32 at positions `offset`, ... -> logits [B, L, V] in the checkpoint's dtype.

        `offset` is the number of tokens before these: one number for all rows, or one for each. With
        `wanted.last` = n you get only the logits of the last n positions, [B, n, V]; n may be 0 or above L.
        From task 2.1.2 on: `cache` has one cache per layer and is extended; with None the model computes from
        `tokens` alone. Raises ValueError if `offset` does not match what the cache stores.
        """
        batch = len(tokens)
        offsets = [offset] * batch if isinstance(offset, int) else list(offset)
        if cache and cache[0].offsets(batch) != offsets:
            raise ValueError(f"offset {offset} does not match a cache of {cache[0].offsets(batch)} tokens")
        return self.forward(tokens, offsets, cache or (), wanted=wanted)

    def forward(
        self, tokens: mx.array, offsets: Sequence[int], cache: Sequence[Memory] = (), *, wanted: Wanted
    ) -> mx.array:
        """tokens [B, L] at positions offsets[b], ... -> the wanted logits: `__call__` without its checks.

        From task 2.1.2 on: if `cache` is empty, the model computes from `tokens` alone.
        """
        mask: Mask = cache[0].attention_mask(tokens.shape[1]) if cache else "causal"
        x = self.embed_tokens(tokens)
        memories = cache or [NO_CACHE] * len(self.layers)
        for i, (layer, memory) in enumerate(zip(self.layers, memories, strict=True)):
            # The last layer needs a token without logits only for its keys and values.
            own = wanted if i == len(self.layers) - 1 else Wanted()
            x = layer(x, offsets, memory, mask=mask, wanted=own)
        return self.head.as_linear(self.norm(x))

    def layer(self, weights: Weights, rope: RoPE) -> QwenTransformerBlock:
        """Returns one layer, from its own weights, named as in `__init__` but without model.layers.0.

        The model builds each of its layers by this method. `rope` is shared by all of them.
        """
        mixer = QwenMultiHeadAttention(self.config, below("self_attn", weights), rope)
        mlp = QwenMLP(*(weights[f"mlp.{part}_proj.weight"] for part in ("gate", "up", "down")))
        return QwenTransformerBlock(self.config, weights, mixer, mlp)

    def create_kv_cache(self) -> list[RequestKvCache]:
        """Returns an empty cache of one request for each layer, as its mixer creates it."""
        return [layer.mixer.create_cache() for layer in self.layers]
