"""Matrices as a checkpoint stores them."""

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True)
class QuantizedWeights:
    """An [O, I] matrix in MLX's affine packing: w = scale * q + bias, one pair per group along I.

    weight [O, I * bits / 32] uint32, lowest bits first; scales and biases [O, I / group_size]. Those of
    N experts are stacked: all three have one more axis in front, [N, O, ...].
    `activation_bits` 8 asks for products in 8-bit integers: each group of x is rounded to them with a scale
    of its own. Only the C++ kernels heed it, and only for 4-bit weights. None: x as it is.
    """

    weight: mx.array
    scales: mx.array
    biases: mx.array
    group_size: int
    bits: int
    activation_bits: int | None = None


Weight = mx.array | QuantizedWeights
