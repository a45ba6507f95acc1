"""Weights of 2 to 8 bits in MLX's affine packing, read with array operations only."""

import mlx.core as mx

from tiny_llm_lab.types import QuantizedWeights


def dequantize_weights(
    weight: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int
) -> mx.array:
    """Returns the decoded weights: [O, I * bits / 32] uint32 -> [O, I] in the dtype of `scales`.

    A weight is scale * q + bias, where q (0 to 2^bits - 1) is its packed number, and scale and bias
    [O, I / group_size] belong to its group. The packed bits of a row form one little-endian stream: weight i
    is in bits i * bits to (i + 1) * bits - 1, which for 3, 5 and 6 bits may cross a word.
    """
    raise NotImplementedError("task 2.2.1")


def quantized_matmul(
    scales: mx.array,
    biases: mx.array,
    group_size: int,
    bits: int,
    a: mx.array,
    b: mx.array,
    transpose_b: bool = True,
) -> mx.array:
    """Returns a [..., I] times the transpose of packed b [O, I * bits / 32] -> [..., O] in a's dtype.

    With `transpose_b=False` b is an [I, O] matrix packed along O: a [..., I] @ b -> [..., O].
    Accumulates in float32. Raises ValueError if the inner dimensions differ.
    """
    raise NotImplementedError("task 2.2.2")


def quantized_linear(x: mx.array, w: QuantizedWeights, bias: mx.array | None = None) -> mx.array:
    """Returns x [..., I] times the transpose of packed w [O, I], plus bias [O] -> [..., O] in x's dtype.

    The model calls this for every projection, so it must be fast: you may use MLX's own operator.
    """
    raise NotImplementedError("task 2.3.1")
