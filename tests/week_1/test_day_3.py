"""Day 1.3: the causal mask and grouped-query attention."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import oracle
from tests.helpers.tolerance import EXACT, as_float64, assert_close, rounding
from tests.helpers.toy import random_array

# The task of each test that names no other.
pytestmark = pytest.mark.task("1.3.2")

INF = np.inf


@pytest.mark.task("1.3.1")
def test_causal_mask_square(llm):
    want = [[0, -INF, -INF], [0, 0, -INF], [0, 0, 0]]
    assert_close(llm.causal_mask(3, 3, mx.float32), want, EXACT, legend="[L, S]", dtype=mx.float32)


@pytest.mark.task("1.3.1")
def test_causal_mask_is_bottom_right_aligned(llm):
    want = [[0, 0, 0, -INF, -INF], [0, 0, 0, 0, -INF], [0, 0, 0, 0, 0]]
    assert_close(llm.causal_mask(3, 5, mx.float32), want, EXACT, legend="[L, S]")


@pytest.mark.task("1.3.1")
@pytest.mark.parametrize(("L", "S"), [(1, 1), (1, 9), (4, 4), (3, 64), (17, 40)])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_causal_mask_of_any_size_and_dtype(llm, L, S, dtype):
    want = np.where(oracle.visible_causal(L, S), 0.0, -INF)
    assert_close(llm.causal_mask(L, S, dtype), want, EXACT, legend="[L, S]", dtype=dtype)


@pytest.mark.task("1.3.1")
def test_causal_mask_rejects_more_new_tokens_than_stored(llm):
    with pytest.raises(ValueError):
        llm.causal_mask(4, 3, mx.float32)


def qkv(seed, B, H, G, L, S, D, dtype=mx.float32):
    shapes = [(B, H, L, D), (B, G, S, D), (B, G, S, D)]
    return [random_array(seed + i, *shape, dtype=dtype) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize(("H", "G"), [(1, 1), (4, 4), (4, 2), (6, 1), (12, 3)])
def test_grouped_attention(llm, H, G):
    q, k, v = qkv(1, 2, H, G, 5, 7, 8)
    got = llm.scaled_dot_product_attention_grouped(q, k, v)
    assert_close(got, oracle.attention(q, k, v), legend="[B, H, L, D]", dtype=mx.float32)


@pytest.mark.parametrize(("L", "S"), [(1, 1), (5, 5), (2, 9)])
def test_grouped_attention_causal(llm, L, S):
    q, k, v = qkv(3, 1, 6, 3, L, S, 4)
    got = llm.scaled_dot_product_attention_grouped(q, k, v, mask="causal")
    assert_close(got, oracle.attention(q, k, v, causal=True))


@pytest.mark.parametrize("shape", [(5, 7), (1, 1, 5, 7), (2, 1, 5, 7), (2, 6, 5, 7), (1, 6, 1, 7)])
def test_grouped_attention_adds_an_array_mask(llm, shape):
    q, k, v = qkv(4, 2, 6, 3, 5, 7, 8)
    mask = random_array(9, *shape) * 3
    got = llm.scaled_dot_product_attention_grouped(q, k, v, mask=mask)
    assert_close(got, oracle.attention(q, k, v, mask=as_float64(mask)))


@pytest.mark.parametrize("shape", [(5, 7), (2, 1, 5, 7), (2, 6, 5, 7)])
def test_grouped_attention_shows_where_a_boolean_mask_is_true(llm, shape):
    q, k, v = qkv(5, 2, 6, 2, 5, 7, 8)
    visible = np.random.default_rng(6).random(shape) < 0.5
    visible[..., 0] = True
    got = llm.scaled_dot_product_attention_grouped(q, k, v, mask=mx.array(visible))
    assert_close(got, oracle.attention(q, k, v, mask=visible))


def test_grouped_attention_takes_a_scale(llm):
    q, k, v = qkv(7, 1, 4, 2, 3, 3, 8)
    for scale in (1.5, 0.0):
        got = llm.scaled_dot_product_attention_grouped(q, k, v, scale=scale)
        assert_close(got, oracle.attention(q, k, v, scale=scale), what=f"scale {scale}")


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_grouped_attention_in_16_bits(llm, dtype):
    q, k, v = qkv(8, 2, 4, 2, 5, 9, 8, dtype)
    got = llm.scaled_dot_product_attention_grouped(q, k, v, mask="causal")
    # Rounded on the way: q * scale, the scores, the weights, the output.
    assert_close(got, oracle.attention(q, k, v, causal=True), rounding(dtype, 4), dtype=dtype)


def test_grouped_attention_rejects_heads_that_do_not_divide(llm):
    q, k, v = qkv(9, 1, 4, 3, 2, 2, 8)
    with pytest.raises(ValueError):
        llm.scaled_dot_product_attention_grouped(q, k, v)


@pytest.mark.parametrize("mask", ["", "Causal", "full"])
def test_grouped_attention_rejects_masks_that_it_does_not_know(llm, mask):
    q = random_array(30, 1, 2, 3, 8)
    with pytest.raises(ValueError):
        llm.scaled_dot_product_attention_grouped(q, q, q, mask=mask)
