"""Day 2.3: quantized products of few and of many rows in C++."""

import mlx.core as mx
import pytest
from tests.helpers.matrices import assert_same_bits, quantized
from tests.helpers.matrices import numbers as dense
from tests.helpers.tolerance import F32, as_float64, assert_close, rounding
from tests.helpers.toy import random_array

from tiny_llm_lab.runtime import native

TILE, PANEL = pytest.mark.task("2.3.3"), pytest.mark.task("2.3.4")


def in_blocks(w):
    """As the tile reads it: task 2.3.3 needs no panel."""
    return native.in_blocks(w)


def in_rows(w):
    """As MLX packs it: task 2.3.4 makes panels of it."""
    return w


in_both_forms = pytest.mark.parametrize(
    "form", [pytest.param(in_blocks, marks=TILE), pytest.param(in_rows, marks=PANEL)]
)


def times(kernels, x, *weights):
    return kernels.linear(x, list(weights))


def rows_of_many_sizes(seed, rows, inner, dtype):
    """Each twice as large as the one before, up to 8: one row's scale is wrong for the next."""
    sizes = 2.0 ** (mx.arange(rows)[:, None] % 4)
    return (random_array(seed, rows, inner) / inner**0.5 * sizes).astype(dtype)


@in_both_forms
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize(
    ("rows", "outputs", "groups"), [(1, 1, 1), (2, 9, 3), (1, 130, 17), (11, 40, 3), (49, 33, 17)]
)
def test_linear_of_rows(kernels, form, bits, group_size, rows, outputs, groups):
    inner = groups * group_size
    w = quantized(random_array(30, outputs, inner), bits, group_size)
    x = random_array(31, rows, inner) / inner**0.5
    (got,) = times(kernels, x, form(w))
    assert_close(got, as_float64(x) @ dense(w).T, F32, legend="[M, O]", dtype=mx.float32)


@in_both_forms
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (4, 128), (8, 64)])
@pytest.mark.parametrize("rows", [2, 11])
def test_linear_of_rows_of_16_bits(kernels, form, dtype, bits, group_size, rows):
    w = quantized(random_array(46, 9, 640), bits, group_size)
    x = rows_of_many_sizes(47, rows, 640, dtype)
    (got,) = times(kernels, x, form(w))
    assert_close(got, as_float64(x) @ dense(w).T, rounding(dtype, 1), legend="[M, O]", dtype=dtype)


@in_both_forms
def test_linear_of_several_matrices(kernels, form):
    x = random_array(34, 1, 128) / 12
    ws = [quantized(random_array(35 + i, outputs, 128)) for i, outputs in enumerate((5, 300, 17))]
    for got, w in zip(times(kernels, x, *map(form, ws)), ws, strict=True):
        assert_close(got, as_float64(x) @ dense(w).T, F32, legend="[M, O]")


@pytest.mark.task("2.3.3")
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (4, 64), (8, 128)])
def test_a_row_alone_equals_the_same_row_among_others(kernels, dtype, bits, group_size):
    # To the last bit: a token must not depend on who else is in the batch.
    w = native.in_blocks(quantized(random_array(44, 37, 640), bits, group_size))
    x = (random_array(45, 50, 640) / 25).astype(dtype)
    (among_others,) = times(kernels, x, w)
    for row in (0, 1, 24, 47, 48, 49):
        (alone,) = times(kernels, x[row : row + 1], w)
        assert_same_bits(alone, among_others[row : row + 1], f"row {row}")


@pytest.mark.task("2.3.4")
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("rows", [1, 50])
def test_rows_and_blocks_give_the_same_bits(kernels, dtype, rows):
    w = quantized(random_array(41, 37, 640), group_size=64)
    x = (random_array(42, rows, 640) / 25).astype(dtype)
    (of_rows,), (of_blocks,) = times(kernels, x, w), times(kernels, x, native.in_blocks(w))
    assert_same_bits(of_rows, of_blocks, "a matrix in rows, and in blocks")


def check_a_dense_matrix(kernels, form, dtype, rows, outputs, inner):
    w, x = random_array(32, outputs, inner, dtype=dtype), random_array(33, rows, inner) / inner**0.5
    (got,) = times(kernels, x, form(w))
    assert_close(got, as_float64(x) @ as_float64(w).T, F32, legend="[M, O]", dtype=mx.float32)


@in_both_forms
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("inner", [64, 640])
@pytest.mark.parametrize(("rows", "outputs"), [(2, 9), (10, 35)])
def test_linear_of_a_dense_matrix(kernels, form, dtype, inner, rows, outputs):
    check_a_dense_matrix(kernels, form, dtype, rows, outputs, inner)


@pytest.mark.task("2.3.4")
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("inner", [1, 7, 100])
@pytest.mark.parametrize(("rows", "outputs"), [(2, 9), (10, 35)])
def test_linear_of_a_dense_matrix_whose_rows_end_early(kernels, dtype, inner, rows, outputs):
    check_a_dense_matrix(kernels, in_rows, dtype, rows, outputs, inner)


@pytest.mark.task("2.3.4")
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_a_column_never_meets_the_next_one(kernels, dtype):
    # Behind the end of a row is the next one. x has zeros there, but zero times infinity is NaN.
    w, x = random_array(36, 40, 7, dtype=dtype), random_array(37, 2, 7)
    w[1::2] = mx.inf
    (got,) = times(kernels, x, w)
    want = as_float64(x) @ as_float64(w[::2]).T
    assert_close(got[:, ::2], want, F32, legend="[M, O]", dtype=mx.float32)
