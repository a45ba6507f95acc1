"""A hybrid on a model's operators: what `HybridModel` computes, in the dtype of its weights."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import (
    NO_CACHE,
    DeltaKernel,
    DeltaRule,
    KernelOps,
    Layer,
    LayerStack,
    LayerWeights,
    Mixer,
    ModelConfig,
    RequestKvCache,
    Wanted,
)

from ..cache.kv_cache import TinyKvFullCache
from ..cache.memory import Memory
from ..cache.paged_attention import PagedLayer
from ..cache.paged_states import HybridKvCache
from ..layers.attention import Mask
from ..layers.gated_delta import KernelDeltaRule
from ..layers.ops_shared_expert import OpsSharedExpertMoE
from ..layers.positional_encoding import RoPE
from .hybrid_parts import delta_rule, hybrid_kv_cache, state_of
from .hybrid_stack import stacked_hybrid
from .ops_model import OpsBlock, OpsModel
from .qwen import AllSum, FeedForward, Weights


class OpsDeltaNet:
    """The mixer of a layer: its first norm and a gated delta net, without the output projection."""

    def __init__(self, ops: KernelOps, config: ModelConfig, weights: LayerWeights, rule: DeltaRule) -> None:
        """`weights` belong to the layer, `rule` is what is between its projections."""
        self.ops, self.config, self.rule = ops, config, rule
        self.weights = replace(weights, net=rule) if isinstance(rule, KernelDeltaRule) else weights

    def __call__(
        self,
        x: mx.array,
        offsets: Sequence[int],
        cache: Memory = NO_CACHE,
        *,
        mask: Mask = "causal",
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """x [B, L, E] -> [B, n, Hv * Dv] for the last n = `wanted.last` tokens; all L go into the state."""
        batch, length, _ = x.shape
        normed = self.ops.rms_norm(x.flatten(0, 1), self.weights.norm, self.weights.eps)[1]
        rows = self.ops.linear(normed, self.weights.qkv)
        out = state_of(cache, self.config).update(self.rule, rows, batch, length).astype(x.dtype)
        out = out.reshape(batch, length, -1)
        return out if wanted.last >= length else out[:, length - wanted.last :]

    def create_cache(self) -> RequestKvCache:
        """An empty `SequenceState`."""
        return cast(RequestKvCache, state_of(NO_CACHE, self.config))


class OpsGatedAttention:
    """The mixer of a layer: its first norm and gated attention, without the output projection."""

    def __init__(self, ops: KernelOps, config: ModelConfig, weights: LayerWeights, rope: RoPE) -> None:
        """`weights` belong to the layer; `rope` rotates the first dimensions of a head."""
        self.ops, self.rope, self.dim = ops, rope, config.head_dim
        self.weights = replace(weights, has_gate=True)

    def __call__(
        self,
        x: mx.array,
        offsets: Sequence[int],
        cache: Memory = NO_CACHE,
        *,
        mask: Mask = "causal",
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """As `OpsAttention`: x [B, L, E] -> [B, n, H * D], times the sigmoid of the gates."""
        ops, w, (batch, length, _) = self.ops, self.weights, x.shape
        behind = max(0, length - wanted.last)
        normed = ops.rms_norm(x, w.norm, w.eps)[1]
        q, k, v = (
            [*ops.linear(normed[:, behind:], w.qkv[:1]), *ops.linear(normed, w.qkv[1:])]
            if behind
            else ops.linear(normed, w.qkv)
        )
        q, gate = mx.split(mx.unflatten(q, 2, (-1, 2 * self.dim)), 2, axis=-1)
        q = self._rotated(q, w.query_norm, [offset + behind for offset in offsets])
        k = self._rotated(mx.unflatten(k, 2, (-1, self.dim)), w.key_norm, offsets)
        v, scale = mx.unflatten(v, 2, (-1, self.dim)).transpose(0, 2, 1, 3), self.dim**-0.5
        if isinstance(cache, PagedLayer):
            attended = cache.attend(q, k, v, scale)
        else:
            lengths = [stored + length for stored in cache.offsets(batch)]
            attended = ops.attention(q, *cache.update_and_fetch(k, v), lengths, scale)
        return ops.sigmoid_gate(attended, gate.flatten(2))

    def create_cache(self) -> TinyKvFullCache:
        """An empty cache on the operators."""
        return TinyKvFullCache(self.ops)

    def _rotated(self, x: mx.array, norm: mx.array | None, offsets: Sequence[int]) -> mx.array:
        assert norm is not None, "every hybrid has norms of heads"
        return self.ops.norm_rope(x, norm, self.weights.eps, self.rope, offsets)


_MIXERS = (OpsDeltaNet, OpsGatedAttention)


class OpsHybridModel(OpsModel):
    """A `HybridModel` on operators."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        ops: KernelOps,
        all_sum: AllSum | None = None,
        delta_kernel: DeltaKernel | None = None,
    ) -> None:
        """As `OpsModel`; `delta_kernel` is what computes the delta nets between their projections."""
        self.delta_kernel = delta_kernel
        super().__init__(config, weights, ops, all_sum)
        self.stack = _stack_of(self) if all_sum is None else None

    def layer(self, weights: Weights, rope: RoPE, all_sum: AllSum | None = None) -> Layer[Memory]:
        """One layer from its own weights, as `HybridModel.layer`."""
        ops, config = self.ops, self.config
        w = LayerWeights.of(config.rms_norm_eps, weights)
        mixer: Mixer[Memory] = (
            OpsDeltaNet(ops, config, w, delta_rule(config, weights, self.delta_kernel))
            if "linear_attn.A_log" in weights
            else OpsGatedAttention(ops, config, w, rope)
        )
        if all_sum is None and w.router is None:
            # After the mixer nothing differs from a model with attention alone.
            return OpsBlock(mixer, partial(ops.attn_out_mlp, w=w))
        mlp = partial(_dense, ops, w) if w.router is None else OpsSharedExpertMoE(config, w, weights, ops)
        return OpsBlock(mixer, partial(_in_parts, ops, w, mlp, all_sum))

    def forward(
        self, tokens: mx.array, offsets: Sequence[int], cache: Sequence[Memory] = (), *, wanted: Wanted
    ) -> mx.array:
        """As `OpsModel`, with all layers in one operator where that is possible."""
        x = self.ops.embedding(tokens, self.embed_tokens.weight)
        hidden = None if self.stack is None else stacked_hybrid(self.stack, x, cache, wanted)
        return self._logits(self._layer_by_layer(x, offsets, cache, wanted) if hidden is None else hidden)

    def create_paged_kv_cache(
        self, num_blocks: int, block_size: int = 16, kv_bits: int | None = None
    ) -> HybridKvCache:
        """As `HybridModel.create_paged_kv_cache`."""
        return hybrid_kv_cache(self, num_blocks, block_size, kv_bits)


def _stack_of(model: OpsHybridModel) -> LayerStack | None:
    """All layers as one operator; None if a layer has experts, or a delta net that no kernel computes."""
    mixers = [m for m in (layer.mixer for layer in model.layers) if isinstance(m, _MIXERS)]
    ropes = [mixer.rope for mixer in mixers if isinstance(mixer, OpsGatedAttention)]
    is_on_kernels = len(ropes) + sum(m.weights.net is not None for m in mixers) == len(model.layers)
    if not ropes or not is_on_kernels or any(mixer.weights.router is not None for mixer in mixers):
        return None
    return model.ops.layer_stack([mixer.weights for mixer in mixers], ropes[0])


def _dense(ops: KernelOps, w: LayerWeights, normed: mx.array) -> mx.array:
    gated, raised = ops.linear(normed, [w.gate, w.up])
    return ops.linear(ops.swiglu(gated, raised), [w.down])[0]


def _in_parts(
    ops: KernelOps,
    w: LayerWeights,
    mlp: FeedForward,
    all_sum: AllSum | None,
    x: mx.array,
    mixed: mx.array,
) -> mx.array:
    """A layer after its mixer, summed over all ranks twice."""
    total = all_sum or (lambda part: part)
    x, normed = ops.rms_norm(x, w.mlp_norm, w.eps, total(ops.linear(mixed, [w.out])[0]))
    return x + total(mlp(normed))
