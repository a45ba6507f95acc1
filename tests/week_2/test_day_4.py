"""Day 2.4: attention one block of keys at a time."""

import mlx.core as mx
import pytest
from tests.helpers import oracle
from tests.helpers.tolerance import F32, assert_close, rounding
from tests.helpers.toy import random_array


def qkv(seed, B, H, L, S, D, dtype=mx.float32):
    shapes = [(B, H, L, D), (B, H, S, D), (B, H, S, D)]
    return [random_array(seed + i, *shape, dtype=dtype) for i, shape in enumerate(shapes)]


@pytest.mark.task("2.4.1")
@pytest.mark.parametrize("S", [1, 63, 64, 65, 127, 128, 129, 200])
@pytest.mark.parametrize("L", [1, 5, 64, 65])
def test_flash_attention_around_block_edges(llm, L, S):
    q, k, v = qkv(1, 1, 2, L, S, 8)
    assert_close(llm.flash_attention(q, k, v), oracle.attention(q, k, v), F32, dtype=mx.float32)


@pytest.mark.task("2.4.1")
@pytest.mark.parametrize(("B", "H", "D"), [(1, 1, 1), (3, 2, 7), (2, 5, 64)])
def test_flash_attention_shapes(llm, B, H, D):
    q, k, v = qkv(2, B, H, 9, 70, D)
    got = llm.flash_attention(q, k, v)
    assert_close(got, oracle.attention(q, k, v), F32, legend="[B, H, L, D]")
    want = mx.fast.scaled_dot_product_attention(q, k, v, scale=D**-0.5)
    assert_close(got, want, F32, legend="[B, H, L, D]")


@pytest.mark.task("2.4.1")
def test_flash_attention_takes_a_scale(llm):
    q, k, v = qkv(3, 1, 2, 4, 130, 8)
    for scale in (1.5, 0.0):
        want = oracle.attention(q, k, v, scale=scale)
        assert_close(llm.flash_attention(q, k, v, scale), want, F32, what=f"scale {scale}")


@pytest.mark.task("2.4.1")
@pytest.mark.parametrize("order", ["rising", "falling"])
def test_flash_attention_when_the_maximum_moves(llm, order):
    q, k, v = qkv(4, 1, 2, 6, 256, 8)
    sizes = mx.repeat(mx.array([0.1, 1.0, 10.0, 60.0]), 64)[:, None]
    k = k * (sizes if order == "rising" else sizes[::-1])
    # Scores reach hundreds and lose as many units in the last place.
    assert_close(llm.flash_attention(q, k, v), oracle.attention(q, k, v), rounding(mx.float32, 4000))


@pytest.mark.task("2.4.1")
@pytest.mark.parametrize("shift", [-300.0, 300.0])
def test_flash_attention_does_not_overflow(llm, shift):
    # A constant column moves all scores of a row by `shift`: softmax is the same, exp(300) is not a number.
    q, k, v = qkv(5, 1, 1, 5, 100, 4)
    q[..., 0], k[..., 0] = 1.0, shift
    got = llm.flash_attention(q, k, v, scale=1.0)
    assert_close(got, oracle.attention(q, k, v, scale=1.0), rounding(mx.float32, 3000))


@pytest.mark.task("2.4.1")
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_flash_attention_of_16_bits_accumulates_in_32(llm, dtype):
    q, k, v = qkv(6, 2, 2, 7, 300, 16, dtype)
    got = llm.flash_attention(q, k, v)
    # Only the result is rounded.
    assert_close(got, oracle.attention(q, k, v), rounding(dtype, 1), dtype=dtype)


@pytest.mark.task("2.4.1")
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_flash_attention_over_many_blocks_of_16_bits(llm, dtype):
    # 150 blocks: each adds less to the running sums than a few units of their last place in 16 bits.
    q, k, v = qkv(7, 1, 2, 4, 9600, 8, dtype)
    v = v * 0.1 + 1
    got = llm.flash_attention(q, k, v)
    assert_close(got, oracle.attention(q, k, v), rounding(dtype, 0.5), dtype=dtype)
