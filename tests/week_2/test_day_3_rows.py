"""Day 2.3: quantized products of few and of many rows in C++."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.matrices import numbers as dense
from tests.helpers.matrices import quantized
from tests.helpers.tolerance import F32, as_float64, assert_close, rounding
from tests.helpers.toy import random_array


def times(kernels, x, *weights):
    return kernels.linear(x, list(weights))


def rows_of_many_sizes(seed, rows, inner, dtype):
    """Each twice as large as the one before, up to 8: one row's scale is wrong for the next."""
    sizes = 2.0 ** (mx.arange(rows)[:, None] % 4)
    return (random_array(seed, rows, inner) / inner**0.5 * sizes).astype(dtype)


FEW, MANY = pytest.mark.task("2.3.3"), pytest.mark.task("2.3.4")


def of_few_and_many(name, few, many):
    """Sets of values of task 2.3.3, and of task 2.3.4."""
    both = [*((each, FEW) for each in few), *((each, MANY) for each in many)]
    return pytest.mark.parametrize(name, [pytest.param(*each, marks=task) for each, task in both])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@of_few_and_many(
    ("rows", "outputs", "groups"),
    [(1, 1, 1), (2, 9, 3), (7, 130, 1), (8, 33, 17)],
    [(9, 1, 1), (10, 9, 3), (49, 33, 1), (11, 40, 19)],
)
def test_linear_of_rows(kernels, bits, group_size, rows, outputs, groups):
    inner = groups * group_size
    w = quantized(random_array(30, outputs, inner), bits, group_size)
    x = random_array(31, rows, inner) / inner**0.5
    (got,) = times(kernels, x, w)
    assert_close(got, as_float64(x) @ dense(w).T, F32, legend="[M, O]", dtype=mx.float32)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (4, 128), (8, 64)])
@of_few_and_many(("rows", "inner"), [(6, 384)], [(11, 640)])
def test_linear_of_rows_of_16_bits(kernels, dtype, bits, group_size, rows, inner):
    w = quantized(random_array(46, 9, inner), bits, group_size)
    x = rows_of_many_sizes(47, rows, inner, dtype)
    (got,) = times(kernels, x, w)
    assert_close(got, as_float64(x) @ dense(w).T, rounding(dtype, 1), legend="[M, O]", dtype=dtype)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@of_few_and_many(
    ("rows", "outputs", "inner"),
    [(2, 9, inner) for inner in (1, 7, 64, 100)],
    [(10, 35, inner) for inner in (1, 7, 64, 600)],
)
def test_linear_of_rows_of_a_dense_matrix(kernels, dtype, rows, outputs, inner):
    w, x = random_array(32, outputs, inner, dtype=dtype), random_array(33, rows, inner) / inner**0.5
    (got,) = times(kernels, x, w)
    assert_close(got, as_float64(x) @ as_float64(w).T, F32, legend="[M, O]", dtype=mx.float32)


@pytest.mark.task("2.3.3")
def test_linear_of_several_matrices(kernels):
    x = random_array(34, 1, 128) / 12
    ws = [quantized(random_array(35 + i, outputs, 128)) for i, outputs in enumerate((5, 300, 17))]
    for got, w in zip(times(kernels, x, *ws), ws, strict=True):
        assert_close(got, as_float64(x) @ dense(w).T, F32, legend="[M, O]")


@pytest.mark.task("2.3.4")
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (4, 64), (8, 128), (0, 0)])
def test_a_row_alone_equals_the_same_row_among_others(kernels, dtype, bits, group_size):
    # To the last bit: a token must not depend on who else is in the batch.
    w = random_array(44, 37, 640)
    w = quantized(w, bits, group_size) if bits else w
    x = (random_array(45, 50, 640) / 25).astype(dtype)
    (among_others,) = times(kernels, x, w)
    for row in (0, 1, 24, 47, 48, 49):
        (alone,) = times(kernels, x[row : row + 1], w)
        differing = np.flatnonzero(as_float64(alone[0]) != as_float64(among_others[row]))
        assert differing.size == 0, f"row {row} differs at columns {differing[:8].tolist()}"
