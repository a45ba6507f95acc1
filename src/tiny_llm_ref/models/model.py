"""Qwen on a set of operators, which compute a layer in a few large pieces: dense, with experts or hybrid.

Every operator costs a few microseconds to plan, start and end, whatever it computes. In a step of one token
through 28 layers with dozens of operators each, that takes longer than the attention.
"""

from collections.abc import Callable, Sequence
from functools import partial

import mlx.core as mx

from tiny_llm_lab.types import (
    DeltaKernel,
    KernelOps,
    LayerStack,
    LayerWeights,
    Memory,
    Mixer,
    ModelConfig,
    RequestKvCache,
    Wanted,
)

from ..cache.paged_kv_cache import PagedKvCache
from ..cache.paged_states import HybridKvCache
from ..layers.gated_delta import GatedDeltaRule, KernelDeltaRule
from ..layers.layer_norm import RMSNorm
from ..layers.moe import QwenMoE, SharedExpertMoE
from ..layers.positional_encoding import RoPE
from .mixers import Attention, DeltaNet, GatedAttention
from .ranks import ALONE, Ranks
from .stack import stacked
from .weights import Weights, array, below

FeedForward = Callable[[mx.array], mx.array]  # for each token separately: [..., E] -> [..., E]


class Block:
    """One layer: a mixer and a feed-forward, each inside a residual connection."""

    def __init__(self, mixer: Mixer, rest: Callable[[mx.array, mx.array], mx.array]) -> None:
        """rest(x, mixed) is the layer from the output projection to its end, [..., E] -> [..., E]."""
        self.mixer, self.rest = mixer, rest

    def __call__(
        self, x: mx.array, offsets: Sequence[int], memory: Memory, wanted: Wanted = Wanted()
    ) -> mx.array:
        """x [B, L, E] at positions `offsets` -> [B, n, E]: after the mixer n = `wanted.last` tokens continue.

        `memory` stores all L tokens.
        From task 3.2.2 on: only the rows `wanted.rows` continue, in this order.
        """
        mixed = self.mixer(x, offsets, memory, wanted)
        x = x if wanted.last >= x.shape[1] else x[:, x.shape[1] - wanted.last :]
        if wanted.rows is not None:
            rows = mx.array(list(wanted.rows), mx.int32)
            x, mixed = x[rows], mixed[rows]
        return self.rest(x, mixed)


class Qwen:
    """A decoder-only Qwen on a set of operators: embedding, layers, final norm and output head."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        ops: KernelOps,
        *,
        ranks: Ranks = ALONE,
        delta_kernel: DeltaKernel | None = None,
    ) -> None:
        """`weights` are as of `QwenModel`. Model, caches and samplers run on `ops`. Sets config and ops.

        `weights` may be in blocks, see `QuantizedWeights`: then nothing but `ops` reads them.
        From task 3.10.2 on: a layer with mlp.gate.weight has experts, a `QwenMoE`.
        From task 3.10.4 on: each of the `ranks` has its part of the weights, see `shard_checkpoint`.
        From task 4.3.6 on: a layer with linear_attn.* has a gated delta net, which `delta_kernel` computes
        between its projections, if there is one.
        """
        self.config, self.ops, self.ranks, self.delta_kernel = config, ops, ranks, delta_kernel
        positions = config.max_position_embeddings
        # All layers share one table, because the angles depend only on the position.
        rope = RoPE(config.rotary_dims, positions, config.rope_theta, scaling=config.rope_scaling)
        self.embedding = weights["model.embed_tokens.weight"]
        self.norm = array(weights, "model.norm.weight")
        self.head = self.embedding if config.tie_word_embeddings else weights["lm_head.weight"]
        layers = (below(f"model.layers.{i}", weights) for i in range(config.num_hidden_layers))
        self.layers = [self.layer(own, rope) for own in layers]
        self.stack = self._stack(rope)

    def __call__(
        self,
        tokens: mx.array,
        offset: int | Sequence[int] = 0,
        cache: Sequence[Memory] | None = None,
        *,
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """tokens [B, L] int32 at positions `offset`, ... -> logits [B, L, V] in the checkpoint's dtype.

        As `QwenModel`: `offset` is one number for all rows, or one for each, `wanted.last` = n limits the
        logits to the last n positions, and `cache`, which has one memory per layer, is extended.
        Raises ValueError if `offset` does not match what the cache has seen.
        From task 3.2.2 on: only the rows `wanted.rows` have logits, in this order, [rows, L, V]; the keys and
        values of all rows are computed. The list may be empty. The cache may be paged.
        """
        offsets = [offset] * len(tokens) if isinstance(offset, int) else list(offset)
        if cache and cache[0].offsets(len(tokens)) != offsets:
            raise ValueError(
                f"offset {offset} does not match a cache of {cache[0].offsets(len(tokens))} tokens"
            )
        if wanted.rows is not None and list(wanted.rows) == list(range(len(tokens))):
            wanted = Wanted(wanted.last)  # choosing all rows would only copy
        return self.logits(self.hidden(tokens, offsets, cache, wanted=wanted))

    def hidden(
        self,
        tokens: mx.array,
        offsets: Sequence[int],
        cache: Sequence[Memory] | None = None,
        *,
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """tokens [B, L] at positions offsets[b], ... -> what is `wanted` of [B, L, E] after the last norm.

        From task 3.2.6 on: all layers are one operator where `stacked` can run them.
        """
        x = self.ops.embedding(tokens, self.embedding)
        out = stacked(self.stack, x, cache, wanted) if self.stack and cache else None
        if out is None:
            out = self._layer_by_layer(x, offsets, cache or self.create_kv_cache(), wanted)
        return self.ops.rms_norm(out, self.norm, self.config.rms_norm_eps)[1]

    def logits(self, hidden: mx.array) -> mx.array:
        """hidden [..., E] after a last norm -> [..., V]."""
        return self.ops.linear(hidden, [self.head])[0]

    def layer(self, weights: Weights, rope: RoPE) -> Block:
        """Returns one layer, from its own weights, named as in `__init__` but without model.layers.0.

        The model builds each of its layers by this method. `rope` is shared by all of them.
        From task 3.10.2 on: with mlp.gate.weight among the weights, the feed-forward is a `QwenMoE`.
        From task 4.3.6 on: a hybrid has a `DeltaNet` or `GatedAttention`; the feed-forward is a
        `SharedExpertMoE` if config.shared_expert_intermediate_size is above 0.
        """
        ops, w = self.ops, LayerWeights.of(self.config, weights)
        mixer = self._mixer(w, weights, rope)
        if w.mixture is None and self.ranks.is_alone:
            return Block(mixer, partial(ops.attn_out_mlp, w=w))
        mlp: FeedForward = partial(_dense, ops, w)
        if w.mixture is not None:
            kind = SharedExpertMoE if self.config.shared_expert_intermediate_size else QwenMoE
            mlp = kind(self.config, below("mlp", weights), ops)
        return Block(mixer, partial(_in_parts, ops, w, mlp, self.ranks))

    def create_kv_cache(self) -> list[RequestKvCache]:
        """Returns an empty memory of one request for each layer, as its mixer creates it."""
        return [layer.mixer.create_cache() for layer in self.layers]

    def create_paged_kv_cache(
        self, num_blocks: int, block_size: int = 16, kv_bits: int | None = None
    ) -> PagedKvCache:
        """Returns a `PagedKvCache` for this model's layers, of 8 bits or in the dtype of its norms.

        From task 4.4.1 on: of a hybrid, a `HybridKvCache`; `kv_bits` are those of the layers with attention.
        """
        config, shape = self.config, (num_blocks, block_size, self.norm.dtype, kv_bits)
        if config.hybrid is None:
            return PagedKvCache(config, *shape)
        return HybridKvCache(config, config.hybrid, *shape)

    def _layer_by_layer(
        self, x: mx.array, offsets: Sequence[int], cache: Sequence[Memory], wanted: Wanted
    ) -> mx.array:
        last = len(self.layers) - 1
        for i, (layer, memory) in enumerate(zip(self.layers, cache, strict=True)):
            # The last layer needs a token without logits only for its keys and values.
            x = layer(x, offsets, memory, wanted if i == last else Wanted())
            if self.ops.starts_early and i % 4 == 0 and i < last:
                mx.async_eval(x)  # operators start while Python still plans later layers
        return x

    def _mixer(self, w: LayerWeights, weights: Weights, rope: RoPE) -> Mixer:
        config, ops = self.config, self.ops
        if config.hybrid is None:
            return Attention(ops, w, config.head_dim, rope)
        if own := below("linear_attn", weights):
            sizes, eps = config.hybrid.delta_net, config.rms_norm_eps
            conv, a_log, dt_bias = (array(own, name) for name in ("conv1d.weight", "A_log", "dt_bias"))
            norm = RMSNorm(sizes.value_head_dim, array(own, "norm.weight"), eps)
            rule, kernel = GatedDeltaRule(sizes, conv, a_log, dt_bias, norm), self.delta_kernel
            return DeltaNet(ops, w, sizes, rule if kernel is None else KernelDeltaRule(kernel, rule))
        return GatedAttention(ops, w, config.head_dim, rope)

    def _stack(self, rope: RoPE) -> LayerStack | None:
        """All layers as one operator; None for ranks, or delta nets that no kernel computes."""
        weights = [layer.mixer.weights for layer in self.layers]
        num_states = len(weights) - self.config.num_kv_layers
        is_on_kernels = num_states < len(weights) and sum(w.net is not None for w in weights) == num_states
        return self.ops.layer_stack(weights, rope) if self.ranks.is_alone and is_on_kernels else None


def _dense(ops: KernelOps, w: LayerWeights, normed: mx.array) -> mx.array:
    gated, raised = ops.linear(normed, [w.gate, w.up])
    return ops.linear(ops.swiglu(gated, raised), [w.down])[0]


def _in_parts(
    ops: KernelOps, w: LayerWeights, mlp: FeedForward, ranks: Ranks, x: mx.array, mixed: mx.array
) -> mx.array:
    """A layer after its mixer, summed over all ranks twice."""
    x, normed = ops.rms_norm(x, w.mlp_norm, w.eps, ranks.total(ops.linear(mixed, [w.out])[0]))
    return x + ranks.total(mlp(normed))
