"""A Qwen on a model's operators, which compute a layer in a few large pieces.

Every operator costs a few microseconds to plan, start and end, whatever it computes. In a step of one token
through 28 layers with dozens of operators each, that takes longer than the attention.
"""

from collections.abc import Callable, Sequence
from functools import partial

import mlx.core as mx

from tiny_llm_lab.types import NO_CACHE, KernelOps, Layer, LayerWeights, Mixer, ModelConfig, Wanted

from ..cache.kv_cache import TinyKvFullCache
from ..cache.memory import Memory
from ..cache.paged_attention import PagedLayer
from ..layers.attention import Mask
from ..layers.moe import OpsMoE
from ..layers.positional_encoding import RoPE
from .qwen import AllSum, QwenModel, Weights

Rest = Callable[[mx.array, mx.array], mx.array]


class OpsAttention:
    """The mixer of a layer: its first norm and causal attention, without the output projection."""

    def __init__(self, ops: KernelOps, weights: LayerWeights, head_dim: int, rope: RoPE) -> None:
        """`weights` belong to the layer; heads are `head_dim` wide."""
        self.ops, self.weights, self.scale, self.rope = ops, weights, head_dim**-0.5, rope

    def __call__(
        self,
        x: mx.array,
        offsets: Sequence[int],
        cache: Memory = NO_CACHE,
        *,
        mask: Mask = "causal",
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """x [B, L, E] at positions `offsets` -> [B, n, H * D] for the last n = `wanted.last` tokens.

        A row sees the tokens that its cache stores for it, so `mask` is ignored.
        From task 3.2.2 on: a `PagedLayer` stores and attends by itself.
        """
        batch, length, _ = x.shape
        q, k, v = self.ops.qkv_rope(x, self.weights, self.rope, offsets, min(wanted.last, length))
        if isinstance(cache, PagedLayer):
            return cache.attend(q, k, v, self.scale)
        lengths = [stored + length for stored in cache.offsets(batch)]
        k, v = cache.update_and_fetch(k, v)
        return self.ops.attention(q, k, v, lengths, self.scale)

    def create_cache(self) -> TinyKvFullCache:
        """Returns an empty cache on the operators."""
        return TinyKvFullCache(self.ops)


class OpsBlock:
    """Computes what `QwenTransformerBlock` computes with a causal mask, on operators."""

    def __init__(self, mixer: Mixer[Memory], rest: Rest) -> None:
        """rest(x, attended) is the layer from the output projection to its end, [..., E] -> [..., E]."""
        self.mixer, self.rest = mixer, rest

    def __call__(
        self,
        x: mx.array,
        offsets: Sequence[int],
        cache: Memory = NO_CACHE,
        *,
        mask: Mask = "causal",
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """Like `QwenTransformerBlock`.

        From task 3.2.2 on: only the rows `wanted.rows` continue.
        """
        attended = self.mixer(x, offsets, cache, mask=mask, wanted=wanted)
        x = x if wanted.last >= x.shape[1] else x[:, x.shape[1] - wanted.last :]
        if wanted.rows is not None:
            rows = mx.array(list(wanted.rows), mx.int32)
            x, attended = x[rows], attended[rows]
        return self.rest(x, attended)


class OpsModel(QwenModel):
    """A `QwenModel` on operators, one layer at a time."""

    ops: KernelOps

    def __init__(
        self, config: ModelConfig, weights: Weights, ops: KernelOps, all_sum: AllSum | None = None
    ) -> None:
        """Like `QwenModel`. Sets `ops`, which the model, its caches and its samplers run on.

        `weights` may be in blocks, see `QuantizedWeights`: then nothing but `ops` reads them.
        From task 3.10.2 on: a layer with mlp.gate.weight has experts, an `OpsMoE`.
        From task 3.10.4 on: `all_sum` is as in `QwenModel`.
        """
        self.ops = ops
        super().__init__(config, weights, all_sum)

    def layer(self, weights: Weights, rope: RoPE, all_sum: AllSum | None = None) -> Layer[Memory]:
        """Returns one layer on the operators, an `OpsBlock`; parameters as of `QwenModel.layer`.

        From task 3.10.4 on: `all_sum` is as in `QwenModel`.
        """
        w = LayerWeights.of(self.config.rms_norm_eps, weights)
        mixer = OpsAttention(self.ops, w, self.config.head_dim, rope)
        if all_sum is None and w.router is None:
            return OpsBlock(mixer, partial(self.ops.attn_out_mlp, w=w))
        mlp = partial(_dense, self.ops, w) if w.router is None else OpsMoE(self.config, w, self.ops)
        total = all_sum or (lambda part: part)

        def in_parts(x: mx.array, attended: mx.array) -> mx.array:
            out = total(self.ops.linear(attended, [w.out])[0])
            x, normed = self.ops.rms_norm(x, w.mlp_norm, w.eps, out)
            return x + total(mlp(normed))

        return OpsBlock(mixer, in_parts)

    def forward(
        self, tokens: mx.array, offsets: Sequence[int], cache: Sequence[Memory] = (), *, wanted: Wanted
    ) -> mx.array:
        """Like `QwenModel.forward`."""
        x = self.ops.embedding(tokens, self.embed_tokens.weight)
        return self._logits(self._layer_by_layer(x, offsets, cache, wanted))

    def _layer_by_layer(
        self, x: mx.array, offsets: Sequence[int], cache: Sequence[Memory], wanted: Wanted
    ) -> mx.array:
        last = len(self.layers) - 1
        for i, (layer, memory) in enumerate(self._with_memory(cache)):
            x = layer(x, offsets, memory, wanted=wanted if i == last else Wanted())
            if self.ops.starts_early and i % 4 == 0 and i < last:
                mx.async_eval(x)  # operators start while Python still plans later layers
        return x

    def _logits(self, x: mx.array) -> mx.array:
        normed = self.ops.rms_norm(x, self.norm.weight, self.norm.eps)[1]
        return self.ops.linear(normed, [self.head.weight])[0]


def _dense(ops: KernelOps, w: LayerWeights, normed: mx.array) -> mx.array:
    gated, raised = ops.linear(normed, [w.gate, w.up])
    return ops.linear(ops.swiglu(gated, raised), [w.down])[0]
