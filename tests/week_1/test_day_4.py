"""Day 1.4: RMSNorm, SiLU and the gated MLP."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import oracle
from tests.helpers.tolerance import F32, as_float64, assert_close, rounding
from tests.helpers.toy import random_array

# The task of each test that names no other.
pytestmark = pytest.mark.task("1.4.1")


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 4, 7)])
def test_rms_norm(llm, shape):
    x, w = random_array(1, *shape) * 3, random_array(2, 7)
    got = llm.RMSNorm(7, w, eps=1e-6)(x)
    assert_close(got, oracle.rms_norm(x, w, 1e-6), F32, legend="[..., dim]", dtype=mx.float32)
    assert_close(got, mx.fast.rms_norm(x, w, 1e-6))


@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_rms_norm_adds_eps_to_the_mean_square(llm, eps):
    x, w = random_array(3, 4, 6) * 1e-2, random_array(4, 6)
    assert_close(llm.RMSNorm(6, w, eps)(x), oracle.rms_norm(x, w, eps))


def test_rms_norm_defaults_to_eps_1e_minus_5(llm):
    x, w = random_array(5, 2, 6) * 1e-3, mx.ones(6)
    assert_close(llm.RMSNorm(6, w)(x), oracle.rms_norm(x, w, 1e-5))


def test_rms_norm_of_zeros_is_zero(llm):
    assert_close(llm.RMSNorm(4, mx.ones(4))(mx.zeros((2, 4))), np.zeros((2, 4)))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_rms_norm_of_16_bits_averages_in_32(llm, dtype):
    # 400^2 overflows float16; a sum of 1024 squares loses its last terms in bfloat16.
    x, w = random_array(6, 3, 1024, dtype=dtype) * 100, random_array(7, 1024, dtype=dtype)
    got = llm.RMSNorm(1024, w, 1e-6)(x)
    # One rounding, of the result.
    assert_close(got, oracle.rms_norm(x, w, 1e-6), rounding(dtype, 1), dtype=dtype)


def test_rms_norm_keeps_the_dtype_of_x(llm):
    x, w = random_array(8, 2, 6, dtype=mx.bfloat16), random_array(9, 6)
    assert_close(
        llm.RMSNorm(6, w)(x), oracle.rms_norm(x, w, 1e-5), rounding(mx.bfloat16, 1), dtype=mx.bfloat16
    )


@pytest.mark.parametrize("shape", [(5,), (1, 6), (1,)])
def test_rms_norm_rejects_a_weight_of_another_shape(llm, shape):
    with pytest.raises(ValueError):
        llm.RMSNorm(6, mx.ones(shape))


@pytest.mark.task("1.4.2")
@pytest.mark.parametrize("shape", [(9,), (2, 3, 5)])
def test_silu(llm, shape):
    x = random_array(10, *shape) * 5
    assert_close(llm.silu(x), oracle.silu(x), dtype=mx.float32)


@pytest.mark.task("1.4.2")
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_silu_of_large_numbers(llm, dtype):
    x = mx.array([-60000.0, -1000.0, -100.0, -20.0, 0.0, 20.0, 100.0, 1000.0, 60000.0]).astype(dtype)
    assert_close(llm.silu(x), oracle.silu(x), rounding(dtype, 1), dtype=dtype)


@pytest.mark.task("1.4.2")
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_silu_of_16_bits_is_rounded_once(llm, dtype):
    x = random_array(11, 4000, dtype=dtype) * 4
    # Half a unit, and a little for the float32 inside.
    assert_close(llm.silu(x), oracle.silu(x), rounding(dtype, 0.51), dtype=dtype)


@pytest.mark.task("1.4.3")
@pytest.mark.parametrize("shape", [(8,), (3, 8), (2, 3, 8)])
def test_gated_mlp(llm, shape):
    gate, up, down = (random_array(20 + i, *s) / 3 for i, s in enumerate([(11, 8), (11, 8), (8, 11)]))
    x = random_array(24, *shape)
    wide, g, u, d = (as_float64(a) for a in (x, gate, up, down))
    want = (oracle.silu(wide @ g.T) * (wide @ u.T)) @ d.T
    assert_close(llm.QwenMLP(gate, up, down)(x), want, legend="[..., E]", dtype=mx.float32)


@pytest.mark.task("1.4.3")
def test_gated_mlp_with_as_many_inner_as_outer_dimensions(llm):
    # Square matrices: nothing but the numbers can tell gate from up or a matrix from its transpose.
    gate, up, down = (random_array(30 + i, 6, 6) / 2 for i in range(3))
    x = random_array(34, 2, 6)
    wide, g, u, d = (as_float64(a) for a in (x, gate, up, down))
    assert_close(llm.QwenMLP(gate, up, down)(x), (oracle.silu(wide @ g.T) * (wide @ u.T)) @ d.T)
