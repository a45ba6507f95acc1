"""Qwen3-Next and Qwen3.5: most layers have a gated delta net, the others attention with an output gate."""

from collections.abc import Sequence
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import (
    NO_CACHE,
    DeltaKernel,
    DeltaRule,
    HybridConfig,
    Layer,
    ModelConfig,
    RequestKvCache,
    Wanted,
)

from ..cache.kv_cache import TinyKvFullCache
from ..cache.memory import Memory
from ..cache.paged_attention import PagedLayer
from ..cache.paged_states import HybridKvCache, StateLayer
from ..cache.state import BatchingState, SequenceState
from ..layers.attention import Mask, scaled_dot_product_attention_grouped
from ..layers.basics import linear
from ..layers.embedding import Embedding
from ..layers.gated_delta import GatedDeltaRule, KernelDeltaRule
from ..layers.layer_norm import RMSNorm
from ..layers.positional_encoding import RoPE
from ..layers.shared_expert import SharedExpertMoE
from .qwen import FeedForward, QwenMLP, QwenModel, QwenTransformerBlock, Weights

_STATES = (SequenceState, BatchingState, StateLayer)


class GatedDeltaNet:
    """A mixer whose memory has one size: convolution, gated delta rule, gated norm (arXiv 2412.06464)."""

    def __init__(self, config: ModelConfig, weights: Weights, kernel: DeltaKernel | None = None) -> None:
        """`weights` hold in_proj_qkv.weight [C, E] with C = 2 Hk Dk + Hv Dv, in_proj_z.weight [Hv Dv, E],
        in_proj_b.weight and in_proj_a.weight [Hv, E], conv1d.weight [C, K], dt_bias and A_log [Hv],
        norm.weight [Dv] and out_proj.weight [E, Hv Dv].
        """
        self.weights, self.sizes = weights, _hybrid(config).delta_net
        rule = GatedDeltaRule(
            self.sizes,
            _array(weights, "conv1d.weight"),
            _array(weights, "A_log"),
            _array(weights, "dt_bias"),
            RMSNorm(self.sizes.value_head_dim, _array(weights, "norm.weight"), config.rms_norm_eps),
        )
        self.rule: DeltaRule = rule if kernel is None else KernelDeltaRule(kernel, rule)

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
        memory = cache if isinstance(cache, _STATES) else SequenceState(self.sizes)
        rows = [
            linear(x, self.weights[f"in_proj_{part}.weight"]).flatten(0, 1) for part in ("qkv", "z", "a", "b")
        ]
        out = memory.update(self.rule, rows, batch, length)
        out = out.astype(x.dtype).reshape(batch, length, -1)[:, max(0, length - wanted.last) :]
        return linear(out, self.weights["out_proj.weight"])

    def create_cache(self) -> RequestKvCache:
        """An empty `SequenceState`, which loops treat like any other cache."""
        return cast(RequestKvCache, SequenceState(self.sizes))


class GatedAttention:
    """Grouped-query attention whose output passes a gate; only some dimensions of a head are rotated."""

    def __init__(self, config: ModelConfig, weights: Weights, rope: RoPE) -> None:
        """`weights` hold q_proj.weight [2 H D, E], for each head queries and then gates, k_proj.weight and
        v_proj.weight [G D, E], o_proj.weight [E, H D], q_norm.weight and k_norm.weight [D]. `rope` rotates
        the first config.hybrid.rotary_dims dimensions of a head.
        """
        self.config, self.weights, self.rope = config, weights, rope
        self.q_norm, self.k_norm = (
            RMSNorm(config.head_dim, _array(weights, f"{each}_norm.weight"), config.rms_norm_eps)
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
        dims = _hybrid(self.config).rotary_dims
        return mx.concatenate([self.rope(x[..., :dims], offsets), x[..., dims:]], axis=-1)


class HybridModel(QwenModel):
    """A `QwenModel` on plain arrays in which the configuration says which mixer each layer has."""

    def __init__(
        self, config: ModelConfig, weights: Weights, delta_kernel: DeltaKernel | None = None
    ) -> None:
        """`weights` as for `QwenModel`: where config.hybrid.mixers says "linear_attention" a layer has
        linear_attn.* as `GatedDeltaNet` takes it, else self_attn.* of `GatedAttention`. Experts are those of
        `SharedExpertMoE`. Sets config.
        """
        self.config, hybrid = config, _hybrid(config)
        sizes, positions = (config.vocab_size, config.hidden_size), config.max_position_embeddings
        rope = RoPE(hybrid.rotary_dims, positions, config.rope_theta, scaling=config.rope_scaling)
        self.embed_tokens = Embedding(*sizes, weights["model.embed_tokens.weight"])
        self.layers: list[Layer[Memory]] = []
        for i, kind in enumerate(hybrid.mixers):
            own = _below(f"model.layers.{i}", weights)
            mixer = (
                GatedDeltaNet(config, _below("linear_attn", own), delta_kernel)
                if kind == "linear_attention"
                else GatedAttention(config, _below("self_attn", own), rope)
            )
            self.layers.append(QwenTransformerBlock(config, own, mixer, _feed_forward(config, own)))
        self.norm = RMSNorm(config.hidden_size, _array(weights, "model.norm.weight"), config.rms_norm_eps)
        is_tied = config.tie_word_embeddings
        self.head = self.embed_tokens if is_tied else Embedding(*sizes, weights["lm_head.weight"])

    def forward(
        self, tokens: mx.array, offsets: Sequence[int], cache: Sequence[Memory] = (), *, wanted: Wanted
    ) -> mx.array:
        """As `QwenModel.forward`; a state and keys and values that hold the same tokens have one mask."""
        memories = cache or [NO_CACHE] * len(self.layers)
        mask, last = memories[0].attention_mask(tokens.shape[1]), len(self.layers) - 1
        x = self.embed_tokens(tokens)
        for i, (layer, memory) in enumerate(zip(self.layers, memories, strict=True)):
            x = layer(x, offsets, memory, mask=mask, wanted=wanted if i == last else Wanted())
        return self.head.as_linear(self.norm(x))

    def create_kv_cache(self) -> list[RequestKvCache]:
        """What each layer's mixer remembers of one request, empty."""
        return [layer.mixer.create_cache() for layer in self.layers]

    def create_paged_kv_cache(
        self, num_blocks: int, block_size: int = 16, kv_bits: int | None = None
    ) -> HybridKvCache:
        """A `HybridKvCache` for this model's layers; `kv_bits` are those of the layers with attention."""
        shape = (num_blocks, block_size, self.norm.weight.dtype, kv_bits)
        return HybridKvCache(self.config, _hybrid(self.config), *shape, self.ops)


def _feed_forward(config: ModelConfig, weights: Weights) -> FeedForward:
    own = _below("mlp", weights)
    if "gate.weight" in own:
        return SharedExpertMoE(config, own)
    return QwenMLP(*(own[f"{part}_proj.weight"] for part in ("gate", "up", "down")))


def _hybrid(config: ModelConfig) -> HybridConfig:
    assert config.hybrid is not None, f"{config.model_type} is no hybrid"
    return config.hybrid


def _below(module: str, weights: Weights) -> Weights:
    """The weights of a module, by their names in it."""
    return {
        name.removeprefix(f"{module}."): w for name, w in weights.items() if name.startswith(f"{module}.")
    }


def _array(weights: Weights, name: str) -> mx.array:
    """A parameter that is never quantized."""
    return cast(mx.array, weights[name])
