"""The mixers of a model on operators: attention, and what most layers of a hybrid have in its place."""

from collections.abc import Sequence

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

from ..layers.positional_encoding import RoPE


class Attention:
    """A layer's first norm and causal attention, without the output projection."""

    def __init__(self, ops: KernelOps, weights: LayerWeights, head_dim: int, rope: RoPE) -> None:
        """`weights` belong to the layer; heads are `head_dim` wide. Sets weights."""
        raise NotImplementedError("task 2.5.6")

    def __call__(
        self, x: mx.array, offsets: Sequence[int], memory: Memory, wanted: Wanted = Wanted()
    ) -> mx.array:
        """x [B, L, E] at positions `offsets` -> [B, n, H * D] for the last n = `wanted.last` tokens.

        A row sees the tokens that `memory` has stored for it, and its own up to itself.
        """
        raise NotImplementedError("task 2.5.6")

    def create_cache(self) -> RequestKvCache:
        """Returns an empty `TinyKvFullCache` on the operators."""
        raise NotImplementedError("task 2.5.6")


class GatedAttention(Attention):
    """Attention whose output passes a gate; only the dimensions of a head that `rope` has are rotated."""

    def __init__(self, ops: KernelOps, weights: LayerWeights, head_dim: int, rope: RoPE) -> None:
        """As `Attention`, and weights.qkv[0] [2 H D, E] has for each head queries and then gates.

        Sets weights, with has_gate.
        """
        raise NotImplementedError("task 4.3.4")

    def __call__(
        self, x: mx.array, offsets: Sequence[int], memory: Memory, wanted: Wanted = Wanted()
    ) -> mx.array:
        """As `Attention`: x [B, L, E] -> [B, n, H * D], times the sigmoid of the gates."""
        raise NotImplementedError("task 4.3.4")


class DeltaNet:
    """A layer's first norm and a gated delta net (arXiv 2412.06464), without the output projection."""

    def __init__(self, ops: KernelOps, weights: LayerWeights, sizes: DeltaNetSizes, rule: DeltaRule) -> None:
        """`weights` belong to the layer: weights.qkv has in_proj_qkv [C, E] with C = 2 Hk Dk + Hv Dv,
        in_proj_z [Hv Dv, E], in_proj_a and in_proj_b [Hv, E]. `rule` is what is between the projections.

        Sets weights, with `rule` as net if it is a `KernelDeltaRule`.
        """
        raise NotImplementedError("task 4.3.3")

    def __call__(
        self, x: mx.array, offsets: Sequence[int], memory: Memory, wanted: Wanted = Wanted()
    ) -> mx.array:
        """x [B, L, E] -> [B, n, Hv * Dv] for the last n = `wanted.last` tokens; all L go into the state.

        `offsets` are not read.
        """
        raise NotImplementedError("task 4.3.3")

    def create_cache(self) -> RequestKvCache:
        """Returns an empty `SequenceState`."""
        raise NotImplementedError("task 4.3.3")
