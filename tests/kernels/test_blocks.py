"""What is stored of a matrix in blocks; test_invariance.py and test_elementwise.py compute with it."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.matrices import numbers, packed
from tests.helpers.tolerance import EXACT, assert_close
from tests.helpers.toy import random_array
from tests.kernels.conftest import DTYPES

from tiny_llm_lab.runtime.native import binding, in_blocks


@pytest.mark.parametrize("scales", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "experts"), [(1, 1), (16, 1), (17, 3), (64, 1), (65, 2), (130, 1)])
def test_blocks_hold_the_rows_and_zeros(rows, experts, scales):
    w = packed(1, rows * experts, 160, 4, 32, scales)
    if experts > 1:
        w = w.mapped(lambda array: array.reshape(experts, rows, -1))
    got = in_blocks(w)
    assert got.in_blocks == rows and in_blocks(got) is got
    for name in ("weight", "scales", "biases"):
        before, after = getattr(w, name), getattr(got, name)
        assert after.dtype == before.dtype and after.ndim == before.ndim + 1
        want = mx.pad(before, [*[(0, 0)] * (before.ndim - 2), (0, -rows % 64), (0, 0)])
        assert_close(after.swapaxes(-1, -2).flatten(-3, -2), want, EXACT)
    assert np.array(got.weight, copy=False).ctypes.data % 64 == 0, "a block begins with a cache line"
    assert_close(got.in_rows().weight, w.weight, EXACT)
    assert_close(got.dequantized(), w.dequantized(), EXACT)


def test_dense_blocks_hold_words(dtype):
    for shape in ((1, 64), (70, 128), (3, 17, 64)):
        w = random_array(1, *shape, dtype=dtype)
        got = in_blocks(w)
        assert (got.weight.dtype, got.bits, got.in_blocks) == (dtype, 0, shape[-2])
        rows = got.weight.view(mx.uint32).swapaxes(-1, -2).flatten(-3, -2).view(dtype)
        want = mx.pad(w, [*[(0, 0)] * (w.ndim - 2), (0, -shape[-2] % 64), (0, 0)])
        assert_close(rows, want, EXACT, what=f"{shape}")


def test_blocks_of_views():
    w = packed(1, 40, 160, 4, 32)
    half = w.mapped(lambda array: array[::-2])
    assert_close(numbers(in_blocks(half).in_rows()), numbers(w)[::-2], EXACT)


def test_other_arrays_are_refused():
    for array in (mx.zeros(8), mx.zeros((8, 8), mx.int8)):
        with pytest.raises(ValueError, match=r"rows \[..., O, n\] of 16 or 32 bits"):
            binding().in_blocks(array)
