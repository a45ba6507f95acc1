"""Products against float64: x [..., K] times the transpose of a matrix [N, K], dense or packed."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.matrices import evaluated, fixed_point_rounding, flushed, matrix, numbers, packed, product
from tests.helpers.tolerance import assert_close, of_kernel
from tests.helpers.toy import random_array
from tests.kernels.conftest import DTYPES

# The special case of up to two rows, and tiles of up to eight with every rest.
ROWS = [1, 2, 3, 9, 15, 101]
PACKINGS = [(bits, group) for bits in (4, 8) for group in (32, 64, 128)]
# Dense, and packed for exact products and for those of bytes: (bits, activation bits).
KINDS = [(0, 16), (4, 16), (8, 16), (4, 8), (8, 8)]


def check(got, want, dtype, what, rounding=0.0):
    assert_close(got, want, of_kernel(want, dtype, rounding), dtype=dtype, what=what, legend="[M, N]")


def check_product(got, x, w, what, bias=None):
    check(got, product(x, w, bias), x.dtype, what, fixed_point_rounding(x, w) + flushed(x, w))


@pytest.mark.parametrize("scales", DTYPES, ids=str)
@pytest.mark.parametrize(("bits", "group"), PACKINGS)
def test_packed(k, dtype, scales, bits, group):
    # No four groups, and more than a panel's 256 words; N fills no block of 16 columns, and no item of 64.
    for K, N in ((group, 1), (5 * group, 17), (8192 // bits + group, 70)):
        w = packed(K, N, K, bits, group, scales)
        for M in ROWS:
            x = random_array(M, M, K, dtype=dtype)
            check_product(k.linear(x, [w])[0], x, w, f"M {M}, N {N}, K {K}")


@pytest.mark.parametrize("stored", DTYPES, ids=str)
def test_dense(k, dtype, stored):
    for K, N in ((1, 1), (7, 5), (33, 130), (257, 17), (1031, 6)):
        w = random_array(K, N, K, dtype=stored)
        for M in ROWS:
            x = random_array(M, M, K, dtype=dtype)
            check_product(k.linear(x, [w])[0], x, w, f"M {M}, N {N}, K {K}")


@pytest.mark.parametrize(("bits", "activation_bits"), KINDS)
def test_several_products_with_and_without_bias(k, dtype, bits, activation_bits):
    weights = [matrix(N, N, 192, bits, 64, dtype, activation_bits) for N in (150, 33, 1)]
    biases = [random_array(4, 150, dtype=dtype), None, random_array(5, 1)]
    for M in ROWS:
        x = random_array(M, M, 192, dtype=dtype)
        outs = k.linear(x, weights, biases)
        assert len(outs) == 3
        for out, w, bias in zip(outs, weights, biases, strict=True):
            check_product(out, x, w, f"M {M}, N {numbers(w).shape[0]}", bias)


LEADING = [(128,), (1, 128), (1, 1, 128), (3, 5, 128), (2, 1, 2, 128), (2, 3, 1, 2, 2, 128), (0, 128)]


@pytest.mark.parametrize("shape", LEADING)
def test_any_leading_dimensions(k, shape):
    x = random_array(1, *shape)
    for w in (random_array(2, 9, 128), packed(3, 9, 128), packed(3, 9, 128, activation_bits=8)):
        out = k.linear(x, [w])[0]
        assert out.shape == (*shape[:-1], 9)
        check(out, product(x, w), mx.float32, f"x {shape}")


def test_views_of_x(k, dtype):
    (x,) = evaluated(random_array(1, 4, 6, 256, dtype=dtype))
    views = {
        "the last token": x[:, -1:],
        "every second row": x[:, ::2],
        "backwards": x[::-1, 2],
        "transposed": x.transpose(1, 0, 2),
        "part of the columns": x[..., 64:192],
        "columns backwards": x[..., ::-1],
        "columns with gaps": x[..., ::2],
        "one row repeated": mx.broadcast_to(x[0, :1], (3, 256)),
        "heads side by side": x.reshape(4, 6, 2, 128).transpose(0, 2, 1, 3),
    }
    for what, view in views.items():
        K = view.shape[-1]
        bytes_ = packed(3, 11, K, dtype=dtype, activation_bits=8)
        for w in (random_array(2, 11, K, dtype=dtype), packed(3, 11, K, dtype=dtype), bytes_):
            check_product(k.linear(view, [w])[0], view, w, what)


def test_views_of_the_matrix(k):
    x = random_array(1, 3, 128)
    wide, tall, flat = evaluated(random_array(2, 9, 300), random_array(3, 128, 9), random_array(4, 1, 128))
    views = {
        "columns of a wider one": wide[:, 20:148],
        "every second row": wide[::2, :128],
        "transposed": tall.T,
        "one row repeated": mx.broadcast_to(flat, (7, 128)),
    }
    for what, view in views.items():
        check(k.linear(x, [view])[0], product(x, view), mx.float32, what)
    whole = packed(5, 20, 128, 4, 32)
    half = type(whole)(whole.weight[::2], whole.scales[::2], whole.biases[::2], 32, 4)
    check(k.linear(x, [half])[0], product(x, half), mx.float32, "every second packed row")
    check(k.embedding(mx.array([1, 9]), half), numbers(half)[[1, 9]], mx.float32, "its embedding")


def test_dense_matrices_of_different_dtypes(k):
    x = random_array(1, 2, 65)
    weights = [random_array(i, 6, 65, dtype=dtype) for i, dtype in enumerate(DTYPES)]
    for out, w in zip(k.linear(x, weights), weights, strict=True):
        check(out, product(x, w), mx.float32, str(w.dtype))


@pytest.mark.parametrize("x_size", [1e-25, 1e-6, 1e6, 1e23])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_extreme_scales(k, x_size, size):
    for dtype in (mx.float32, mx.bfloat16):
        for bits, activation_bits in KINDS:
            w = matrix(1, 9, 192, bits, 64, dtype, activation_bits, size)
            for M in (1, 5):
                x = (random_array(2, M, 192) * x_size).astype(dtype)
                check_product(k.linear(x, [w])[0], x, w, f"{bits} bits times {activation_bits}, M {M}")


@pytest.mark.parametrize("activation_bits", [16, 8])
@pytest.mark.parametrize("bits", [4, 8])
def test_activations_next_to_nothing(k, bits, activation_bits):
    """A group's scale may be too small to have an inverse."""
    w = packed(1, 9, 192, bits, activation_bits=activation_bits)
    for size in (1e-34, 1e-36, 1e-38, 1e-40):
        x = (random_array(2, 5, 192) * size).astype(mx.bfloat16)
        got = np.array(k.linear(x, [w])[0].astype(mx.float32))
        assert np.abs(got).max() <= 192 * size * np.abs(numbers(w)).max(), f"activations of {size}"


def test_float16_at_its_ends(k):
    x = random_array(1, 4, 64, dtype=mx.float16)
    for size in (1e-4, 1e3, 1e6):
        w = random_array(2, 5, 64) * size
        want = product(x, w)
        got = k.linear(x, [w])[0]
        tolerance = of_kernel(want, mx.float16)
        # Above 65520 the nearest float16 is infinite.
        want = np.where(np.abs(want) >= 65520, np.copysign(np.inf, want), want)
        assert_close(got, want, tolerance, what=f"weights of size {size}")


def test_not_a_number_stays_in_its_row(k, dtype):
    x = random_array(1, 5, 128, dtype=dtype)
    x[1, 3], x[2, 5] = mx.nan, mx.inf
    weights = [matrix(3, 9, 128, bits, activation_bits=activation) for bits, activation in KINDS[1:]]
    for w in (mx.abs(random_array(2, 9, 128)) + 0.5, *weights):
        got = np.array(k.linear(x, [w])[0].astype(mx.float32))
        assert np.isnan(got[1]).all()
        assert not np.isfinite(got[2]).any()
        assert np.isfinite(got[[0, 3, 4]]).all()


def test_not_a_number_stays_in_its_column(k, dtype):
    """What lies behind the end of a dense row is the next one."""
    x, w = random_array(1, 3, 37), random_array(2, 19, 37, dtype=dtype)
    w[1::2] = mx.nan
    got = np.isnan(np.array(k.linear(x, [w])[0]))
    assert got[:, 1::2].all() and not got[:, ::2].any()


@pytest.mark.parametrize("step", [1, 2, 3, 4])
@pytest.mark.parametrize(("bits", "group"), PACKINGS)
def test_steps_of_the_ladder(k, dtype, step, bits, group):
    for M, K, N in ((1, group, 1), (2, 3 * group, 13), (5, 5 * group, 150)):
        w = packed(K, N, K, bits, group, dtype)
        x = random_array(M, M, K, dtype=dtype)
        check(k.quantized_matmul_step(step, x, w), product(x, w), dtype, f"step {step}, M {M}, N {N}, K {K}")
