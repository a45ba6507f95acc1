"""What a hybrid Qwen adds to a configuration: layers that remember a state of fixed size."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import mlx.core as mx

MixerKind = Literal["full_attention", "linear_attention"]
# What a gated delta net remembers of one sequence, float32: the last inputs of its convolution [K - 1, C] and
# one matrix a value head [Hv, Dk, Dv].
DeltaState = tuple[mx.array, mx.array]
# A gated delta net between its projections: packed rows of inputs, the states before them and where each
# sequence starts [R + 1] -> the outputs of all rows, and the states after them.
DeltaRule = Callable[
    [Sequence[mx.array], Sequence[DeltaState], Sequence[int]], tuple[mx.array, list[DeltaState]]
]


@dataclass(frozen=True)
class DeltaNetSizes:
    """The heads of a gated delta net (Yang et al. 2024, arXiv 2412.06464)."""

    num_key_heads: int
    num_value_heads: int  # a multiple of num_key_heads: consecutive ones share a key head
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int  # tokens that one output of the convolution sees, its own included

    @property
    def key_dim(self) -> int:
        """Numbers of all key heads; the queries have as many."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_dim(self) -> int:
        """Numbers of all value heads."""
        return self.num_value_heads * self.value_head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: queries, keys and values side by side."""
        return 2 * self.key_dim + self.value_dim

    @property
    def tail_shape(self) -> tuple[int, int]:
        """The inputs of the convolution that the next token sees, [K - 1, C]."""
        return self.conv_kernel - 1, self.conv_dim

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """One matrix for each value head, [Hv, Dk, Dv]."""
        return self.num_value_heads, self.key_head_dim, self.value_head_dim


@dataclass(frozen=True)
class HybridConfig:
    """Which layers of a hybrid have a gated delta net, and the sizes that only hybrids have."""

    mixers: tuple[MixerKind, ...]  # one a layer
    delta_net: DeltaNetSizes
    rotary_dims: int  # the first so many of head_dim dimensions are rotated

    @property
    def num_states(self) -> int:
        """Layers that remember a state."""
        return self.mixers.count("linear_attention")

    @property
    def state_bytes(self) -> int:
        """What one sequence's states take in all layers, conv inputs included; both are float32."""
        sizes = self.delta_net
        heads, rows, columns = sizes.state_shape
        tokens, channels = sizes.tail_shape
        return 4 * self.num_states * (heads * rows * columns + tokens * channels)


class DeltaWeights(Protocol):
    """The weights of a gated delta net between its projections."""

    conv: mx.array  # [K, C], the newest token last
    a_log: mx.array  # [Hv]
    dt_bias: mx.array  # [Hv]
    norm: mx.array  # [Dv]
    eps: float


# A gated delta net as one operator over packed rows: rows, weights, states and starts -> out [T, Hv * Dv],
# and the states after the rows. `rows` are qkv [T, C], C = 2 * Hk * Dk + Hv * Dv, z [T, Hv * Dv], a and b
# [T, Hv]. Rows starts[r] to starts[r + 1] - 1 are request r's, which goes on from states[r]. The new state
# takes the old one's memory if nothing else refers to it. A reference to one request's state keeps the memory
# of others at most until the second call without it.
DeltaKernel = Callable[
    [Sequence[mx.array], DeltaWeights, Sequence[DeltaState], Sequence[int]], tuple[mx.array, list[DeltaState]]
]
