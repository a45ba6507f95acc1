"""Matrices as a checkpoint stores them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import mlx.core as mx

QuantizationMode = Literal["affine", "mxfp4", "mxfp8", "nvfp4"]


@dataclass(frozen=True)
class QuantizedWeights:
    """An [O, I] matrix in one of MLX's packings, in groups of `group_size` numbers along I.

    weight is [O, I * bits / 32] uint32, lowest bits first; scales and biases are [O, I / group_size]. In mode
    "affine" a number is scale * q + bias with an integer q. In "mxfp4", "mxfp8" and "nvfp4" it is scale * q
    with a small float q; the scales are 8-bit floats in uint8, biases is None, and only MLX's operators read
    this packing.
    The matrices of N experts are stacked: all arrays have one more axis in front, [N, O, ...].
    With `activation_bits` 16 a product is as exact as its dtype. With 8 the C++ kernels round what the matrix
    is multiplied with, row by row, to integers from -127 to 127 in groups of 32 with a scale each.
    With `in_blocks` = O only the C++ kernels read the arrays: 16 rows at a time, [P / 16, n, 16] in place of
    [O, n], where P is O rounded up to 64 and the rows from O on are zeros. In blocks a matrix may be dense:
    then bits is 0, the words of weight have one float32 or two 16-bit floats, and there are no scales.
    """

    weight: mx.array
    scales: mx.array
    biases: mx.array | None
    group_size: int
    bits: int
    mode: QuantizationMode = "affine"
    dtype: mx.Dtype | None = None  # of the decoded numbers; None = the scales' dtype (affine)
    activation_bits: int = 16
    in_blocks: int = 0

    def mapped(self, change: Callable[[mx.array], mx.array]) -> "QuantizedWeights":
        """Returns the same packing with each array replaced by `change(array)`."""
        biases = None if self.biases is None else change(self.biases)
        return replace(self, weight=change(self.weight), scales=change(self.scales), biases=biases)

    def in_rows(self) -> "QuantizedWeights":
        """Returns the same packed matrix with arrays [O, n]."""
        if not self.in_blocks:
            return self
        rows = self.mapped(lambda part: part.swapaxes(-1, -2).flatten(-3, -2)[..., : self.in_blocks, :])
        return replace(rows, in_blocks=0)

    def scales_for(self, dtype: mx.Dtype) -> tuple[mx.array, mx.array | None]:
        """Returns scales and biases as MLX's operators take them with activations of `dtype`."""
        if self.biases is None:
            return self.scales, None
        return self.scales.astype(dtype), self.biases.astype(dtype)

    def dequantized(self) -> mx.array:
        """Returns the decoded numbers, by MLX's operator: [O, I], or [N, O, I] for stacked experts."""
        w = self.in_rows()
        return mx.dequantize(w.weight, w.scales, w.biases, w.group_size, w.bits, w.mode, dtype=w.dtype)

    @property
    def nbytes(self) -> int:
        """The size of all arrays in bytes."""
        return self.weight.nbytes + self.scales.nbytes + (0 if self.biases is None else self.biases.nbytes)


Weight = mx.array | QuantizedWeights
