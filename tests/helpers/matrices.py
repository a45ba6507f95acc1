"""Matrices as the kernels take them, and inputs that are views."""

import mlx.core as mx
import numpy as np
from tests.helpers import oracle
from tests.helpers.tolerance import as_float64
from tests.helpers.toy import random_array

from tiny_llm_lab.runtime.native import in_blocks
from tiny_llm_lab.types import QuantizedWeights


def packed(seed, N, K, bits=4, group=64, dtype=mx.float32, size=1.0, activation_bits=16):
    """A random [N, K] in MLX's packing, with scales and biases in `dtype`."""
    arrays = mx.quantize(random_array(seed, N, K) * size, group_size=group, bits=bits)
    scales, biases = (array.astype(dtype) for array in arrays[1:])
    w = QuantizedWeights(arrays[0], scales, biases, group, bits, activation_bits=activation_bits)
    mx.eval(w.weight, w.scales, w.biases)
    return w


def matrix(seed, N, K, bits, group=64, dtype=mx.float32, activation_bits=16, size=1.0):
    """A random [N, K], packed or, of 0 bits, dense in `dtype`."""
    if bits:
        return packed(seed, N, K, bits, group, dtype, size, activation_bits)
    return (random_array(seed, N, K) * size).astype(dtype)


def as_stored(w):
    """A matrix by rows and in blocks."""
    return [w, in_blocks(w)]


def quantized(w, bits=4, group_size=32):
    """`w` in MLX's packing, with scales and biases in its own dtype."""
    return QuantizedWeights(*mx.quantize(w, group_size=group_size, bits=bits), group_size, bits)


def numbers(w):
    """A matrix of either kind as float64."""
    if isinstance(w, QuantizedWeights):
        return oracle.dequantized(w.weight, w.scales, w.biases, w.group_size, w.bits)
    return as_float64(w)


def product(x, w, bias=None):
    """In float64, of what `w` has x rounded to."""
    out = (of_bytes(x, w.group_size) if takes_bytes(w) else as_float64(x)) @ numbers(w).T
    return out if bias is None else out + as_float64(bias)


def takes_bytes(w):
    return isinstance(w, QuantizedWeights) and w.activation_bits == 8


def of_bytes(x, group):
    """x with each 32 numbers, or a group, rounded to 127ths of its largest, half to even, in float32."""
    size = min(32, group)
    groups = as_float64(x).astype(np.float32).reshape(*x.shape[:-1], x.shape[-1] // size, size)
    scales = np.abs(groups).max(axis=-1, keepdims=True) / np.float32(127)
    is_normal = scales >= np.finfo(np.float32).tiny
    inverses = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=is_normal)
    return (np.rint(groups * inverses).astype(np.float64) * scales).reshape(x.shape)


def fixed_point_rounding(x, w):
    """The most that packed `w` makes of rounding 16-bit x to integers: by 2^-16 of each group's largest."""
    if x.dtype == mx.float32 or not isinstance(w, QuantizedWeights) or takes_bytes(w):
        return 0.0
    groups = (-1, w.weight.shape[1] * 32 // w.bits // w.group_size, w.group_size)
    largest = np.nan_to_num(np.abs(as_float64(x))).reshape(groups).max(axis=-1, initial=0.0)
    return 2.0**-16 * float((largest @ np.abs(numbers(w)).reshape(groups).sum(axis=-1).T).max(initial=0.0))


def flushed(x, w):
    """The most that a row of dense bfloat16 loses where its products below 2^-126 count as zero."""
    is_bfloat = not isinstance(w, QuantizedWeights) and x.dtype == w.dtype == mx.bfloat16
    return x.shape[-1] * 2.0**-126 if is_bfloat else 0.0


def evaluated(*arrays):
    """Views of evaluated arrays are views; before that MLX may still make copies of them."""
    mx.eval(*arrays)
    return arrays


def assert_same_bits(got, want, what):
    """Equal to the last bit; numbers that compare equal without it are shown in full."""
    got, want = (np.ascontiguousarray(np.array(x.astype(mx.float32))) for x in (got, want))
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    differ = got.view(np.uint32) != want.view(np.uint32)
    if differ.any():
        at = tuple(int(i[0]) for i in np.nonzero(differ))
        raise AssertionError(
            f"{what}: {differ.sum()} of {differ.size} differ, first at {at}: {got[at]!r}, {want[at]!r}"
        )
