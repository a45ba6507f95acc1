"""Day 2.5: attention, RMSNorm, SwiGLU and rotary positions in C++."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import oracle
from tests.helpers.attention import qkv
from tests.helpers.tolerance import EXACT, F32, as_float64, assert_close, rounding
from tests.helpers.toy import random_array

# The task of each test that names no other.
pytestmark = pytest.mark.task("2.5.4")


def attention_of(kernels, q, k, v, lengths, causal):
    return kernels.attention(q, k, v, lengths, causal, q.shape[-1] ** -0.5)


@pytest.mark.task("2.5.3")
@pytest.mark.parametrize(("L", "S"), [(1, 1), (1, 33), (5, 5), (3, 64), (9, 65), (50, 130)])
@pytest.mark.parametrize("D", [8, 64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_kernel(kernels, L, S, D, causal):
    q, k, v = qkv(30, 1, 4, 2, L, S, D)
    got = attention_of(kernels, q, k, v, S, causal)
    assert_close(got, oracle.attention(q, k, v, causal=causal), F32, legend="[B, H, L, D]", dtype=mx.float32)


@pytest.mark.task("2.5.3")
@pytest.mark.parametrize(("H", "G"), [(1, 1), (4, 4), (6, 1), (12, 3), (24, 1)])
def test_attention_kernel_of_groups(kernels, H, G):
    q, k, v = qkv(31, 2, H, G, 3, 40, 16)
    got = attention_of(kernels, q, k, v, 40, True)
    assert_close(got, oracle.attention(q, k, v, causal=True), F32, legend="[B, H, L, D]")


@pytest.mark.task("2.5.3")
def test_attention_kernel_reads_each_row_as_far_as_it_is_filled(kernels):
    q, k, v = qkv(32, 3, 4, 2, 2, 70, 16)
    lengths = [2, 33, 70]
    got = attention_of(kernels, q, k, v, lengths, True)
    for row, length in enumerate(lengths):
        own = slice(row, row + 1)
        want = oracle.attention(q[own], k[own, :, :length], v[own, :, :length], causal=True)
        assert_close(got[own], want, F32, what=f"row {row} of length {length}")


@pytest.mark.task("2.5.3")
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_attention_kernel_of_16_bits_accumulates_in_32(kernels, dtype):
    q, k, v = qkv(33, 1, 4, 2, 3, 300, 64, dtype)
    got = attention_of(kernels, q, k, v, 300, True)
    assert_close(got, oracle.attention(q, k, v, causal=True), rounding(dtype, 1), dtype=dtype)


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 5, 64), (1, 1, 1024)])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_rms_norm_kernel(kernels, shape, dtype):
    x, w = random_array(40, *shape, dtype=dtype), random_array(41, shape[-1], dtype=dtype)
    _, got = kernels.rms_norm(x, w, 1e-6)
    assert_close(got, oracle.rms_norm(x, w, 1e-6), norm_tolerance(dtype), dtype=dtype)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_rms_norm_kernel_with_a_residual(kernels, dtype):
    # Sums that bfloat16 has to round: 256 + 0.6 to 1 unit of 2.
    x = (256 + random_array(42, 5, 70)).astype(dtype)
    delta, w = random_array(43, 5, 70, dtype=dtype), mx.ones(70, dtype)
    summed, got = kernels.rms_norm(x, w, 1e-6, delta)
    assert_close(summed, as_float64(x + delta), EXACT, dtype=dtype, what="the sum")
    assert_close(got, oracle.rms_norm(x + delta, w, 1e-6), norm_tolerance(dtype), dtype=dtype)
    # What is normalised is the rounded sum, which the next residual sees.
    assert_close(got, kernels.rms_norm(summed, w, 1e-6)[1], EXACT)


def test_rms_norm_kernel_with_a_large_eps(kernels):
    x, w = random_array(44, 3, 33), random_array(45, 33)
    assert_close(kernels.rms_norm(x, w, 0.5)[1], oracle.rms_norm(x, w, 0.5), F32)


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 5, 64), (300, 96)])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_swiglu_kernel(kernels, shape, dtype):
    gate, up = random_array(46, *shape, dtype=dtype), random_array(47, *shape, dtype=dtype)
    want = oracle.silu(gate) * as_float64(up)
    assert_close(kernels.swiglu(gate, up), want, norm_tolerance(dtype), dtype=dtype)


def test_swiglu_kernel_of_large_gates(kernels):
    gate, up = mx.array([[-1000.0, -50.0, 50.0, 1000.0]]), mx.ones((1, 4))
    assert_close(kernels.swiglu(gate, up), [[0.0, 0.0, 50.0, 1000.0]], F32)


@pytest.mark.task("2.5.5")
@pytest.mark.parametrize("D", [2, 6, 16, 24, 64, 128])
@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("offsets", [[0, 0], [3, 17]])
def test_rope_kernel(kernels, D, traditional, offsets):
    x = random_array(48, 2, 5, 3, D)
    angles = np.arange(30)[:, None] * 10000.0 ** (-2 * np.arange(D // 2) / D)
    cos, sin = (mx.array(f(angles).astype(np.float32)) for f in (np.cos, np.sin))
    got = kernels.rope(x, offsets, cos, sin, traditional)
    want = oracle.rope(x, offsets, traditional=traditional)
    assert_close(got, want, F32, legend="[B, L, H, D]", dtype=mx.float32)


def norm_tolerance(dtype):
    return F32 if dtype == mx.float32 else rounding(dtype, 1)
