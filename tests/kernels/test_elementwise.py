"""Norms, rotations, the gate, the embedding and the choice of a token against float64."""

import math

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import oracle
from tests.helpers.matrices import as_stored, evaluated, numbers, packed
from tests.helpers.tolerance import EXACT, as_float64, assert_close, of_kernel
from tests.helpers.toy import random_array
from tests.kernels.conftest import DTYPES

EPS = 1e-6
SHAPES = [(1, 1), (1, 7), (3, 64), (2, 5, 65), (40, 999), (2, 1, 3, 128), (2, 2, 1, 3, 2, 66), (1, 40000)]


def check(got, want, dtype, what):
    assert_close(got, want, of_kernel(want, dtype), dtype=dtype, what=what)


def of_swiglu(gate, up):
    return oracle.silu(gate) * as_float64(up)


def of_gate(x, gate):
    return as_float64(x) / (1 + np.exp(-as_float64(gate)))


def norm_of_a_sum(k, x, delta):
    """What is normalised is the sum that the next residual sees: rounded already."""
    total, normed = k.rms_norm(x, WEIGHT[: x.shape[-1]], EPS, delta)
    assert_close(total, x + delta, EXACT, dtype=x.dtype, what="the sum")
    return normed


def norm(k, x, _):
    same, normed = k.rms_norm(x, WEIGHT[: x.shape[-1]][::-1], EPS)
    assert_close(same, x, EXACT, dtype=x.dtype)
    return normed


WEIGHT = random_array(3, 40000)
# An operator of two arrays of rows, and what it computes in float64.
OPERATORS = {
    "rms_norm": (norm, lambda x, _: oracle.rms_norm(x, WEIGHT[: x.shape[-1]][::-1], EPS)),
    "rms_norm of a sum": (norm_of_a_sum, lambda x, y: oracle.rms_norm(x + y, WEIGHT[: x.shape[-1]], EPS)),
    "swiglu": (lambda k, x, y: k.swiglu(x, y), of_swiglu),
    "sigmoid_gate": (lambda k, x, y: k.sigmoid_gate(x, y * 3), lambda x, y: of_gate(x, y * 3)),
    "a gate a row": (
        lambda k, x, y: k.sigmoid_gate(x, y[..., :1] * 3),
        lambda x, y: of_gate(x, y[..., :1] * 3),
    ),
}
operators = pytest.mark.parametrize("name", OPERATORS)


@operators
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_of_numbers(k, dtype, shape, name):
    x, y = (random_array(seed, *shape, dtype=dtype) for seed in (1, 2))
    run, want = OPERATORS[name]
    check(run(k, x, y), want(x, y), dtype, name)


@operators
def test_views_of_rows(k, dtype, name):
    (whole,) = evaluated(random_array(1, 4, 6, 128, dtype=dtype))
    run, want = OPERATORS[name]
    views = (
        (whole[:, -1:, 64:], whole[:, :1, :64]),
        (whole[:, ::2, :64], whole[:, 1::2, 64:]),
        (whole.transpose(1, 0, 2)[..., :64], whole.transpose(1, 0, 2)[..., ::2]),
        (whole[..., ::2], whole[..., 64:]),
        (whole[::-1, 0, :64], whole[:, -1, ::2]),
    )
    for x, y in views:
        check(run(k, x, y), want(x, y), dtype, f"{name} of views {x.shape}")


def test_rms_norm_of_any_size(k):
    x, weight = random_array(1, 3, 100), random_array(2, 100)
    for size in (1e-15, 1e-3, 1e3, 1e15):
        check(
            k.rms_norm(x * size, weight, 1e-38)[1],
            oracle.rms_norm(x * size, weight, 1e-38),
            mx.float32,
            f"{size}",
        )
    check(k.rms_norm(x * 0, weight, EPS)[1], np.zeros((3, 100)), mx.float32, "zeros")


@pytest.mark.parametrize("dtype16", [mx.float16, mx.bfloat16], ids=str)
def test_every_16_bit_number_is_read_and_written(k, dtype16):
    bits = np.arange(2**16, dtype=np.uint16)
    x = mx.array(bits).view(dtype16)
    got = k.rms_norm(x[None], mx.ones(2**16), EPS, mx.full((1, 2**16), -0.0, dtype=dtype16))[0]
    got = np.array(got[0].view(mx.uint16))
    wide = np.array(x.astype(mx.float32))
    assert (got[~np.isnan(wide)] == bits[~np.isnan(wide)]).all()
    assert np.isnan(np.array(mx.array(got).view(dtype16).astype(mx.float32))[np.isnan(wide)]).all()


@pytest.mark.parametrize("dtype16", [mx.float16, mx.bfloat16], ids=str)
def test_rounding_to_16_bits_is_to_the_nearest_even(k, dtype16):
    # A product of two numbers has the bits that a rounding must look at: all ties are among them.
    first = mx.array(np.arange(0x3C00, 0x4000, dtype=np.uint16)).view(dtype16)
    x, delta = first[None], (first[::-1] * 2.0**-9)[None].astype(dtype16)
    got = k.rms_norm(x, mx.ones(x.shape[-1]), EPS, delta)[0]
    want = (x.astype(mx.float32) + delta.astype(mx.float32)).astype(dtype16)
    assert_close(got, want, EXACT, dtype=dtype16)


def tables(P, half):
    angles = as_float64(random_array(9, P, half)) * 7
    return mx.array(np.cos(angles).astype(np.float32)), mx.array(np.sin(angles).astype(np.float32))


def turned(x, offsets, cos, sin, traditional):
    x, cos, sin = (as_float64(a) for a in (x, cos, sin))
    out, half = np.zeros(x.shape), x.shape[-1] // 2
    pairs = (slice(0, None, 2), slice(1, None, 2)) if traditional else (slice(0, half), slice(half, None))
    for b, offset in enumerate(offsets):
        rows = slice(offset, offset + x.shape[1])
        c, s = cos[rows, None], sin[rows, None]
        first, second = x[b][..., pairs[0]], x[b][..., pairs[1]]
        out[b][..., pairs[0]] = first * c - second * s
        out[b][..., pairs[1]] = first * s + second * c
    return out


@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("is_normed", [False, True])
def test_rope(k, dtype, traditional, is_normed):
    for B, L, H, D in ((1, 1, 1, 2), (3, 5, 2, 14), (2, 7, 3, 64), (2, 3, 14, 80), (1, 33, 4, 128)):
        x, (cos, sin) = random_array(1, B, L, H, D, dtype=dtype), tables(50, D // 2)
        offsets = [0, 17, 9][:B]
        weight = random_array(2, D, dtype=dtype) if is_normed else None
        got = k.rope(x, offsets, cos, sin, traditional, weight, EPS)
        wide = oracle.rms_norm(x, weight, EPS) if is_normed else x
        check(got, turned(wide, offsets, cos, sin, traditional), dtype, f"B {B}, L {L}, H {H}, D {D}")
        got = k.rope(x, 11, cos, sin, traditional, weight, EPS)
        check(got, turned(wide, [11] * B, cos, sin, traditional), dtype, "one offset for all")


@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("is_normed", [False, True])
def test_rope_of_the_first_dimensions(k, dtype, traditional, is_normed):
    for B, L, H, D, R in ((1, 1, 1, 3, 2), (2, 3, 2, 14, 6), (2, 5, 4, 256, 64), (1, 4, 2, 96, 32)):
        x, (cos, sin) = random_array(1, B, L, H, D, dtype=dtype), tables(50, R // 2)
        weight = random_array(2, D, dtype=dtype) if is_normed else None
        wide = oracle.rms_norm(x, weight, EPS) if is_normed else as_float64(x)
        want = np.concatenate([turned(wide[..., :R], [9] * B, cos, sin, traditional), wide[..., R:]], axis=-1)
        check(k.rope(x, 9, cos, sin, traditional, weight, EPS), want, dtype, f"{R} of {D}")


def test_rope_of_views(k, dtype):
    (x,) = evaluated(random_array(1, 3, 6, 4, 64, dtype=dtype))
    cos, sin = tables(60, 16)
    mx.eval(cos, sin)
    parts = x[:, -2:, :, :32], x[::-1, ::2, 1:3, 32:], x[:1, :1, :1, :32]
    for view in (*parts, x.transpose(0, 2, 1, 3)[..., ::2]):
        at = [5, 0, 40][: len(view)]
        check(k.rope(view, at, cos, sin), turned(view, at, cos, sin, False), dtype, "x")
        wide = mx.concatenate([cos, cos], axis=1)
        mx.eval(wide)
        got = k.rope(view, 2, wide[10:, :16], sin[::-1][:50])
        check(got, turned(view, [2] * len(view), cos[10:], sin[::-1][:50], False), dtype, "views of tables")


def test_swiglu_of_extreme_numbers(k, dtype):
    largest = {mx.float32: 3e38, mx.bfloat16: 3e38, mx.float16: 65504.0}[dtype]
    gate = mx.array(
        [0.0, -0.0, 80.0, -80.0, 86.9, -87.1, 88.0, -88.0, 89.0, -89.0, 1e4, -1e4, largest, -largest]
    ).astype(dtype)
    g = as_float64(gate)
    with np.errstate(over="ignore"):
        want = g / (1 + np.exp(-g)) * 0.5
    got = k.swiglu(gate, mx.full(gate.shape, 0.5, dtype=dtype))
    for i in range(gate.size):  # each alone: the largest would hide the rest
        check(
            got[i],
            np.where(
                np.abs(want[i]) < 1e-30, as_float64(got[i]) * (np.abs(as_float64(got[i])) < 1e-30), want[i]
            ),
            dtype,
            f"gate {g[i]}",
        )
    assert np.isnan(as_float64(k.swiglu(gate * mx.nan, gate))).all()


def test_embedding(k, dtype):
    tokens = mx.array([[3, 0, 3], [69, 5, 68]])
    dense = random_array(1, 70, 33, dtype=dtype)
    assert k.embedding(mx.array([]), dense).shape == (0, 33)
    assert_close(k.embedding(tokens, dense), dense[tokens], EXACT, dtype=dtype)
    wide = random_array(2, 70, 192, dtype=dtype)
    assert_close(k.embedding(tokens, as_stored(wide)[1]), wide[tokens], EXACT, dtype=dtype)
    for bits, group in ((4, 32), (4, 128), (8, 64)):
        w = packed(2, 70, 3 * group, bits, group, dtype)
        for ids in (tokens, tokens.astype(mx.uint32), tokens[:, ::2], tokens[0], tokens[:, :0]):
            for stored in as_stored(w):
                check(k.embedding(ids, stored), numbers(w)[np.array(ids)], dtype, f"{bits} bits")


@pytest.mark.parametrize("V", [1, 5, 64, 1000, 16384, 16385, 50001])
def test_argmax(k, dtype, V):
    x = random_array(V, 3, V, dtype=dtype)
    assert_close(k.argmax(x), np.argmax(as_float64(x), -1), EXACT, dtype=mx.uint32)
    assert_close(k.argmax(x[0]), np.argmax(as_float64(x[0])), EXACT)


@pytest.mark.parametrize("V", [9, 1000, 40000])
def test_argmax_takes_the_first_of_equals(k, dtype, V):
    for place in (0, 1, V // 2, V - 2):
        x = random_array(1, 2, V, dtype=dtype)
        x[:, place], x[:, V - 1] = 100.0, 100.0
        assert_close(k.argmax(x), [place, place], EXACT)
    assert_close(k.argmax(mx.zeros((2, V), dtype=dtype)), [0, 0], EXACT, what="all equal")
    assert_close(k.argmax(mx.full((2, V), -mx.inf, dtype=dtype)), [0, 0], EXACT, what="nothing but -inf")
    hidden = mx.full((1, V), -mx.inf, dtype=dtype)
    hidden[0, V - 1] = -3e4
    assert_close(k.argmax(hidden), [V - 1], EXACT, what="one that is not -inf")


def test_argmax_of_views(k):
    (x,) = evaluated(random_array(1, 4, 6, 100))
    for view in (x[:, -1], x[:, ::2], x[..., ::-1], x[..., 3:50], x.transpose(1, 0, 2)):
        assert_close(k.argmax(view), np.argmax(as_float64(view), -1), EXACT)
    assert [d for d in DTYPES if k.argmax(x.astype(d)).shape != (4, 6)] == []
    assert math.prod(k.argmax(x[:0]).shape) == 0
    six = x.reshape(2, 2, 1, 3, 2, 100)
    assert_close(k.argmax(six), np.argmax(as_float64(six), -1), EXACT)
    assert k.embedding(mx.zeros((2, 1, 1, 2, 1), dtype=mx.int32), x[0]).shape == (2, 1, 1, 2, 1, 100)


def test_gates_of_extreme_numbers(k, dtype):
    x, ends = random_array(1, 3, 100, dtype=dtype), mx.array([[65504.0], [-65504.0], [mx.nan]], dtype)
    got = as_float64(k.sigmoid_gate(x, ends))
    assert np.array_equal(got[0], as_float64(x)[0]) and not got[1].any() and np.isnan(got[2]).all()
