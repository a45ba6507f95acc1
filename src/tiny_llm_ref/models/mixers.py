"""The mixers of a model on operators: attention, and what most layers of a hybrid have in its place."""

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx

from tiny_llm_lab.types import (
    DeltaNetSizes,
    DeltaRule,
    KernelOps,
    LayerWeights,
    Memory,
    RequestKvCache,
    Wanted,
)

from ..cache.kv_cache import TinyKvFullCache
from ..cache.state import SequenceState
from ..layers.gated_delta import KernelDeltaRule
from ..layers.positional_encoding import RoPE


class Attention:
    """A layer's first norm and causal attention, without the output projection."""

    def __init__(self, ops: KernelOps, weights: LayerWeights, head_dim: int, rope: RoPE) -> None:
        """`weights` belong to the layer; heads are `head_dim` wide. Sets weights."""
        self.ops, self.weights, self.dim, self.rope = ops, weights, head_dim, rope

    def __call__(
        self, x: mx.array, offsets: Sequence[int], memory: Memory, wanted: Wanted = Wanted()
    ) -> mx.array:
        """x [B, L, E] at positions `offsets` -> [B, n, H * D] for the last n = `wanted.last` tokens.

        A row sees the tokens that `memory` has stored for it, and its own up to itself.
        """
        q, k, v = self.ops.qkv_rope(x, self.weights, self.rope, offsets, min(wanted.last, x.shape[1]))
        return memory.attend(self.ops, q, k, v, self.dim**-0.5)

    def create_cache(self) -> RequestKvCache:
        """Returns an empty `TinyKvFullCache` on the operators."""
        return TinyKvFullCache(self.ops)


class GatedAttention(Attention):
    """Attention whose output passes a gate; only the dimensions of a head that `rope` has are rotated."""

    def __init__(self, ops: KernelOps, weights: LayerWeights, head_dim: int, rope: RoPE) -> None:
        """As `Attention`, and weights.qkv[0] [2 H D, E] has for each head queries and then gates.

        Sets weights, with has_gate.
        """
        super().__init__(ops, replace(weights, has_gate=True), head_dim, rope)

    def __call__(
        self, x: mx.array, offsets: Sequence[int], memory: Memory, wanted: Wanted = Wanted()
    ) -> mx.array:
        """As `Attention`: x [B, L, E] -> [B, n, H * D], times the sigmoid of the gates."""
        ops, w, behind = self.ops, self.weights, max(0, x.shape[1] - wanted.last)
        normed = ops.rms_norm(x, w.norm, w.eps)[1]
        q, k, v = (
            [*ops.linear(normed[:, behind:], w.qkv[:1]), *ops.linear(normed, w.qkv[1:])]
            if behind
            else ops.linear(normed, w.qkv)
        )
        q, gate = mx.split(mx.unflatten(q, 2, (-1, 2 * self.dim)), 2, axis=-1)
        q = self._rotated(q, w.query_norm, [offset + behind for offset in offsets])
        k = self._rotated(mx.unflatten(k, 2, (-1, self.dim)), w.key_norm, offsets)
        v = mx.unflatten(v, 2, (-1, self.dim)).transpose(0, 2, 1, 3)
        return ops.sigmoid_gate(memory.attend(ops, q, k, v, self.dim**-0.5), gate.flatten(2))

    def _rotated(self, x: mx.array, norm: mx.array | None, offsets: Sequence[int]) -> mx.array:
        assert norm is not None, "every hybrid has norms of heads"
        return self.ops.norm_rope(x, norm, self.weights.eps, self.rope, offsets)


class DeltaNet:
    """A layer's first norm and a gated delta net (arXiv 2412.06464), without the output projection."""

    def __init__(self, ops: KernelOps, weights: LayerWeights, sizes: DeltaNetSizes, rule: DeltaRule) -> None:
        """`weights` belong to the layer: weights.qkv has in_proj_qkv [C, E] with C = 2 Hk Dk + Hv Dv,
        in_proj_z [Hv Dv, E], in_proj_a and in_proj_b [Hv, E]. `rule` is what is between the projections.

        Sets weights, with `rule` as net if it is a `KernelDeltaRule`.
        """
        self.ops, self.sizes, self.rule = ops, sizes, rule
        self.weights = replace(weights, net=rule) if isinstance(rule, KernelDeltaRule) else weights

    def __call__(
        self, x: mx.array, offsets: Sequence[int], memory: Memory, wanted: Wanted = Wanted()
    ) -> mx.array:
        """x [B, L, E] -> [B, n, Hv * Dv] for the last n = `wanted.last` tokens; all L go into the state.

        `offsets` are not read.
        """
        batch, length, _ = x.shape
        normed = self.ops.rms_norm(x.flatten(0, 1), self.weights.norm, self.weights.eps)[1]
        rows = self.ops.linear(normed, self.weights.qkv)
        out = memory.update(self.rule, rows, batch, length).astype(x.dtype).reshape(batch, length, -1)
        return out if wanted.last >= length else out[:, length - wanted.last :]

    def create_cache(self) -> RequestKvCache:
        """Returns an empty `SequenceState`."""
        return SequenceState(self.sizes)
