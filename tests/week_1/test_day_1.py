"""Day 1.1: softmax, linear and attention with as many kv heads as query heads."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import oracle
from tests.helpers.tolerance import F32, Tolerance, as_float64, assert_close, rounding
from tests.helpers.toy import random_array

# The task of each test that names no other.
pytestmark = pytest.mark.task("1.1.1")


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_softmax_along_an_axis(llm, axis):
    x = random_array(1, 3, 7, 5) * 4
    got = llm.softmax(x, axis)
    assert_close(got, oracle.softmax(x, axis), F32, dtype=mx.float32)
    assert_close(got, mx.softmax(x, axis=axis), F32)


def test_softmax_defaults_to_the_last_axis(llm):
    x = random_array(2, 2, 3)
    assert_close(llm.softmax(x), oracle.softmax(x, -1))


def test_softmax_does_not_overflow(llm):
    x = mx.array([[1000.0, 1001.0, 999.0], [-1000.0, -1001.0, -3000.0]])
    assert_close(llm.softmax(x), oracle.softmax(x))


def test_softmax_gives_masked_scores_no_weight(llm):
    assert_close(llm.softmax(mx.array([0.0, -mx.inf, 0.0])), [0.5, 0.0, 0.5])


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_softmax_of_16_bits_sums_in_32(llm, dtype):
    # 3000 equal weights of 1 stop growing at 2048 in float16 and at 256 in bfloat16.
    x = mx.zeros((2, 3000), dtype)
    got = llm.softmax(x)
    assert_close(got, np.full((2, 3000), 1 / 3000), rounding(dtype, 1), dtype=dtype)
    assert_close(as_float64(got) * 3000, np.ones((2, 3000)), rounding(dtype, 1))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_softmax_of_16_bits_is_rounded_once(llm, dtype):
    x = random_array(17, 20, 30, dtype=dtype) * 2
    # Half a unit of each probability, and a little for the float32 inside.
    once = Tolerance(rounding(dtype, 0.51).rtol, 1e-7)
    assert_close(llm.softmax(x), oracle.softmax(x), once, dtype=dtype)


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5)])
def test_linear_multiplies_by_the_transpose(llm, shape):
    x, w = random_array(3, *shape), random_array(4, 7, 5)
    assert_close(llm.linear(x, w), as_float64(x) @ as_float64(w).T, dtype=mx.float32)


def test_linear_adds_the_bias(llm):
    x, w, bias = random_array(5, 2, 3, 5), random_array(6, 5, 5), random_array(7, 5)
    assert_close(llm.linear(x, w, bias), as_float64(x) @ as_float64(w).T + as_float64(bias))


def test_linear_keeps_the_dtype(llm):
    x, w = random_array(8, 3, 8, dtype=mx.bfloat16) / 4, random_array(9, 4, 8, dtype=mx.bfloat16) / 4
    want = as_float64(x) @ as_float64(w).T
    assert_close(llm.linear(x, w), want, rounding(mx.bfloat16), dtype=mx.bfloat16)


def qkv(seed, batch, L, S, D, dtype=mx.float32):
    shapes = [(*batch, L, D), (*batch, S, D), (*batch, S, D)]
    return [random_array(seed + i, *shape, dtype=dtype) for i, shape in enumerate(shapes)]


def attend(q, k, v, scale, mask=0.0):
    q, k, v = as_float64(q), as_float64(k), as_float64(v)
    return oracle.softmax(q @ np.swapaxes(k, -1, -2) * scale + as_float64(mask)) @ v


@pytest.mark.task("1.1.2")
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize(("L", "S"), [(1, 1), (5, 5), (3, 8)])
def test_attention(llm, batch, L, S):
    q, k, v = qkv(10, batch, L, S, 6)
    got = llm.scaled_dot_product_attention_simple(q, k, v)
    assert_close(got, attend(q, k, v, 6**-0.5), legend="[..., L, D]", dtype=mx.float32)


@pytest.mark.task("1.1.2")
def test_attention_takes_a_scale(llm):
    q, k, v = qkv(12, (2,), 4, 5, 8)
    assert_close(llm.scaled_dot_product_attention_simple(q, k, v, scale=2.0), attend(q, k, v, 2.0))
    assert_close(llm.scaled_dot_product_attention_simple(q, k, v, scale=0.0), attend(q, k, v, 0.0))


@pytest.mark.task("1.1.2")
@pytest.mark.parametrize("mask_shape", [(4, 5), (1, 5), (2, 1, 4, 5)])
def test_attention_adds_the_mask_to_the_scores(llm, mask_shape):
    q, k, v = qkv(13, (2, 3), 4, 5, 8)
    mask = random_array(14, *mask_shape) * 3
    got = llm.scaled_dot_product_attention_simple(q, k, v, mask=mask)
    assert_close(got, attend(q, k, v, 8**-0.5, mask))


@pytest.mark.task("1.1.2")
def test_attention_ignores_what_the_mask_hides(llm):
    q, k, v = qkv(15, (), 3, 6, 4)
    mask = mx.array([0.0, -mx.inf, 0.0, 0.0, -mx.inf, -mx.inf])
    seen = mx.array([0, 2, 3])
    got = llm.scaled_dot_product_attention_simple(q, k, v, mask=mask)
    assert_close(got, attend(q, k[seen], v[seen], 0.5))


@pytest.mark.task("1.1.2")
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_attention_in_16_bits(llm, dtype):
    q, k, v = qkv(16, (2, 2), 5, 9, 8, dtype)
    got = llm.scaled_dot_product_attention_simple(q, k, v)
    # Rounded on the way: q * scale, the scores, the weights, the output.
    assert_close(got, attend(q, k, v, 8**-0.5), rounding(dtype, 4), dtype=dtype)


def multi_head(llm, seed, E=12, H=3):
    weights = [random_array(seed + i, E, E) / E**0.5 for i in range(4)]
    return llm.SimpleMultiHeadAttention(E, H, *weights), weights


def multi_head_oracle(weights, H, query, key, value, mask=None):
    wq, wk, wv, wo = (as_float64(w) for w in weights)

    def heads(x, w):
        out = as_float64(x) @ w.T
        return np.stack(np.split(out, H, axis=-1), axis=1)  # head h owns the h-th run of columns

    q, k, v = heads(query, wq), heads(key, wk), heads(value, wv)
    out = oracle.attention(q, k, v, mask=None if mask is None else as_float64(mask))
    return np.concatenate([out[:, h] for h in range(H)], axis=-1) @ wo.T


@pytest.mark.task("1.1.3")
@pytest.mark.parametrize("H", [1, 3, 4])
def test_multi_head_attention(llm, H):
    layer, weights = multi_head(llm, 20, 12, H)
    x = random_array(24, 2, 5, 12)
    assert_close(layer(x, x, x), multi_head_oracle(weights, H, x, x, x), legend="[B, L, E]", dtype=mx.float32)


@pytest.mark.task("1.1.3")
def test_multi_head_attention_over_another_sequence(llm):
    layer, weights = multi_head(llm, 30)
    query, key, value = random_array(34, 2, 4, 12), random_array(35, 2, 7, 12), random_array(36, 2, 7, 12)
    assert_close(layer(query, key, value), multi_head_oracle(weights, 3, query, key, value))


@pytest.mark.task("1.1.3")
def test_multi_head_attention_masks_every_head(llm):
    layer, weights = multi_head(llm, 40)
    x = random_array(44, 2, 4, 12)
    mask = mx.where(mx.arange(4) <= mx.arange(4)[:, None], 0.0, -mx.inf)
    assert_close(layer(x, x, x, mask), multi_head_oracle(weights, 3, x, x, x, mask))
    per_head = random_array(45, 1, 3, 4, 4)
    assert_close(layer(x, x, x, per_head), multi_head_oracle(weights, 3, x, x, x, per_head))
