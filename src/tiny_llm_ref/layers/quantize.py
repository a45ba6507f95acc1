"""Weights of 2 to 8 bits in MLX's affine packing, read with array operations only."""

import mlx.core as mx

from tiny_llm_lab.types import QuantizedWeights

# Output rows decoded at a time. This keeps the float copy of the weights to a few MB.
_ROWS_PER_BLOCK = 1024


def dequantize_weights(
    weight: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int
) -> mx.array:
    """Returns the decoded weights: [O, I * bits / 32] uint32 -> [O, I] in the dtype of `scales`.

    A weight is scale * q + bias, where q (0 to 2^bits - 1) is its packed number, and scale and bias
    [O, I / group_size] belong to its group. The packed bits of a row form one little-endian stream: weight i
    is in bits i * bits to (i + 1) * bits - 1, which for 3, 5 and 6 bits may cross a word.
    """
    rows, words = weight.shape
    start = mx.arange(words * 32 // bits, dtype=mx.uint32) * bits
    word, shift = start // 32, start % 32
    low = weight[:, word] >> shift
    # A shift by 32 is undefined, so shift twice. Bits past the end of the row are masked off below.
    high = (weight[:, mx.minimum(word + 1, words - 1)] << 1) << (31 - shift)
    q = mx.bitwise_and(low | high, 2**bits - 1)
    groups = q.reshape(rows, -1, group_size).astype(scales.dtype)
    return mx.flatten(groups * scales[..., None] + biases[..., None], 1)


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
    logical = (b.shape[0], b.shape[1] * 32 // bits)
    inner = logical[1] if transpose_b else logical[0]
    if a.shape[-1] != inner:
        raise ValueError(f"a has {a.shape[-1]} columns but the packed matrix takes {inner}")
    wide = a.astype(mx.float32)
    parts = []
    for first in range(0, logical[0], _ROWS_PER_BLOCK):
        rows = slice(first, first + _ROWS_PER_BLOCK)
        scale, bias = scales[rows].astype(mx.float32), biases[rows].astype(mx.float32)
        block = dequantize_weights(b[rows], scale, bias, group_size, bits)
        parts.append(wide @ block.T if transpose_b else wide[..., rows] @ block)
    out = mx.concatenate(parts, axis=-1) if transpose_b else sum(parts[1:], parts[0])
    return out.astype(a.dtype)


def quantized_linear(x: mx.array, w: QuantizedWeights, bias: mx.array | None = None) -> mx.array:
    """Returns x [..., I] times the transpose of packed w [O, I], plus bias [O] -> [..., O] in x's dtype.

    The model calls this for every projection, so it must be fast: you may use MLX's own operator.
    """
    if x.size == 0:  # MLX's CPU operator divides by the number of rows
        return mx.zeros((*x.shape[:-1], w.weight.shape[0]), x.dtype)
    # On the CPU, MLX is slower with 16-bit activations, and in bfloat16 its error is 3 percent.
    wide = x if mx.default_device() == mx.gpu else x.astype(mx.float32)
    scales, biases = w.scales_for(wide.dtype)
    out = mx.quantized_matmul(
        wide, w.weight, scales, biases, transpose=True, group_size=w.group_size, bits=w.bits, mode=w.mode
    ).astype(x.dtype)
    return out if bias is None else out + bias
