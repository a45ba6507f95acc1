"""Day 2.3: products of packed weights and bytes in C++."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.matrices import assert_same_bits, of_bytes, quantized
from tests.helpers.matrices import numbers as dense
from tests.helpers.tolerance import EXACT, as_float64, assert_close, of_kernel
from tests.helpers.toy import random_array

pytestmark = pytest.mark.task("2.3.5")


def times(kernels, x, w):
    (out,) = kernels.linear(x, [replace(w, activation_bits=8)])
    return out


def assert_product(got, x, w, dtype):
    want = x @ dense(w).T
    assert_close(got, want, of_kernel(want, dtype), legend="[M, O]", dtype=dtype)


def of_many_sizes(seed, rows, inner, dtype=mx.float32):
    """Neighbouring rows, and neighbouring 32 numbers of a row, are up to 8 times as large as each other."""
    sizes = 2.0 ** ((mx.arange(rows)[:, None] + mx.arange(inner) // 32) % 4)
    return (random_array(seed, rows, inner) / inner**0.5 * sizes).astype(dtype)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize(
    ("rows", "outputs", "groups"), [(1, 1, 1), (2, 9, 3), (7, 130, 1), (13, 33, 17), (49, 40, 3)]
)
def test_linear_of_bytes(kernels, bits, group_size, rows, outputs, groups):
    w = quantized(random_array(60, outputs, groups * group_size), bits, group_size)
    x = of_many_sizes(61, rows, groups * group_size)
    assert_product(times(kernels, x, w), of_bytes(x, 32), w, mx.float32)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (4, 128), (8, 64)])
def test_linear_of_bytes_of_16_bits(kernels, dtype, bits, group_size):
    w = quantized(random_array(62, 9, 640, dtype=dtype), bits, group_size)
    x = of_many_sizes(63, 11, 640, dtype)
    # Only the result is rounded to 16 bits.
    assert_product(times(kernels, x, w), of_bytes(x, 32), w, dtype)


@pytest.mark.parametrize("rows", [1, 5])
def test_whole_numbers_up_to_127_are_not_rounded(kernels, rows):
    # The scale is 1. What is wrong here is wrong in the tile, or the order of the bytes.
    x = mx.arange(rows * 64).reshape(rows, 64) * 37 % 255 - 127.0
    x[:, ::32] = -127.0
    w = quantized(mx.arange(9 * 64).reshape(9, 64) * 7 % 16 - 8.0, group_size=64)
    assert_product(times(kernels, x, w), as_float64(x), w, mx.float32)


@pytest.mark.parametrize("rows", [1, 5])
def test_halves_go_to_the_even_number(kernels, rows):
    x = mx.broadcast_to(mx.arange(32) * 4 + 0.5, (rows, 32)) * mx.array([[1.0, -1.0] * 16])
    x[:, 0] = 127.0
    w = quantized(random_array(64, 9, 32))
    assert_product(times(kernels, x, w), np.rint(as_float64(x)), w, mx.float32)


@pytest.mark.parametrize("size", [0.0, 1e-40, 1e-37])
def test_next_to_nothing_becomes_zeros(kernels, size):
    w = quantized(random_array(65, 9, 64))
    x = (random_array(66, 3, 64) * size).astype(mx.bfloat16)
    x[1] = mx.ones(64)
    assert_close(times(kernels, x, w)[::2], np.zeros((2, 9)), EXACT, legend="[M, O]")


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (4, 64), (8, 128)])
def test_a_row_in_bytes_alone_equals_the_same_row_among_others(kernels, dtype, bits, group_size):
    w = quantized(random_array(67, 37, 640), bits, group_size)
    x = of_many_sizes(68, 50, 640, dtype)
    among_others = times(kernels, x, w)
    for row in (0, 1, 24, 47, 48, 49):
        for many in (1, 2):
            alone = times(kernels, x[row : row + many], w)
            assert_same_bits(alone, among_others[row : row + many], f"row {row}, {many} at a time")
