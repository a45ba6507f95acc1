"""A layer's two large operators, composed of small ones, for sets without a single operator for them."""

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx

from tiny_llm_lab.types import CommonOps, LayerWeights, Offsets, Rotary


class SmallOps(CommonOps, Protocol):
    """What a layer is made of."""

    def rotated(self, x: mx.array, rope: Rotary, offsets: Offsets) -> mx.array:
        """x [B, L, H, D], rotated from `offsets` on -> [B, H, L, D]."""


class ComposedOps:
    """`qkv_rope` and `attn_out_mlp` of `KernelOps`, by the small operators of the subclass."""

    def qkv_rope(
        self: SmallOps, x: mx.array, w: LayerWeights, rope: Rotary, offsets: Offsets, kept: int
    ) -> Sequence[mx.array]:
        """See `KernelOps.qkv_rope`."""
        length, dim = x.shape[1], 2 * rope.periods.size
        require_positions(rope, offsets, length)
        normed = self.rms_norm(x, w.norm, w.eps)[1]
        if kept == length:
            parts = self.linear(normed, w.qkv, w.biases)
        else:
            query = self.linear(normed[:, length - kept :], w.qkv[:1], w.biases[:1])
            parts = query + self.linear(normed, w.qkv[1:], w.biases[1:])
        q, k, v = [mx.unflatten(part, 2, (-1, dim)) for part in parts]
        if w.query_norm is not None:
            q = self.rms_norm(q, w.query_norm, w.eps)[1]
        if w.key_norm is not None:
            k = self.rms_norm(k, w.key_norm, w.eps)[1]
        behind = length - kept
        q = self.rotated(q, rope, [offset + behind for offset in offsets] if behind else offsets)
        return q, self.rotated(k, rope, offsets), v.transpose(0, 2, 1, 3)

    def norm_rope(
        self: SmallOps, x: mx.array, weight: mx.array, eps: float, rope: Rotary, offsets: Offsets
    ) -> mx.array:
        """See `KernelOps.norm_rope`."""
        require_positions(rope, offsets, x.shape[1])
        return self.rotated(self.rms_norm(x, weight, eps)[1], rope, offsets)

    def attn_out_mlp(self: SmallOps, x: mx.array, attended: mx.array, w: LayerWeights) -> mx.array:
        """See `KernelOps.attn_out_mlp`."""
        x, normed = self.rms_norm(x, w.mlp_norm, w.eps, self.linear(attended, [w.out])[0])
        gated, raised = self.linear(normed, [w.gate, w.up])
        return x + self.linear(self.swiglu(gated, raised), [w.down])[0]

    def layer_stack(self, layers: Sequence[LayerWeights], rope: Rotary) -> None:
        """See `KernelOps.layer_stack`."""


def furthest(offsets: Offsets, length: int) -> int:
    """The number of positions that `length` tokens after `offsets` reach."""
    return max(offsets, default=0) + length


def require_positions(rope: Rotary, offsets: Offsets, length: int) -> None:
    """Raise ValueError for a position that `rope` does not have."""
    if min(offsets, default=0) < 0 or furthest(offsets, length) > rope.seq_len:
        raise ValueError(f"positions must be 0 to {rope.seq_len - 1}")
