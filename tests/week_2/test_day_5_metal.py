"""Day 2.5: FlashAttention in Metal."""

import mlx.core as mx
import pytest
from tests.helpers import oracle
from tests.helpers.attention import qkv
from tests.helpers.tolerance import F32, Tolerance, assert_close, rounding
from tests.helpers.toy import random_array

from tiny_llm_lab.types import UserError

pytestmark = pytest.mark.task("2.5.2")


@pytest.mark.parametrize(("L", "S"), [(1, 1), (1, 65), (5, 5), (3, 40), (9, 33)])
@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_flash_attention_metal(llm, metal, L, S, D, causal):
    q, k, v = qkv(11, 1, 4, 2, L, S, D)
    got = llm.flash_attention_metal(q, k, v, causal=causal)
    want = oracle.attention(q, k, v, causal=causal)
    assert_close(got, want, F32, legend="[B, H, L, D]", dtype=mx.float32)
    want = mx.fast.scaled_dot_product_attention(q, k, v, scale=D**-0.5, mask="causal" if causal else None)
    assert_close(got, want, F32, legend="[B, H, L, D]")


@pytest.mark.parametrize(("H", "G"), [(1, 1), (4, 4), (4, 2), (6, 1), (12, 3)])
def test_flash_attention_metal_of_groups(llm, metal, H, G):
    q, k, v = qkv(12, 2, H, G, 3, 10, 64)
    got = llm.flash_attention_metal(q, k, v, causal=True)
    assert_close(got, oracle.attention(q, k, v, causal=True), F32, legend="[B, H, L, D]")


@pytest.mark.parametrize("D", [4, 24, 80])
def test_flash_attention_metal_of_other_head_dims(llm, metal, D):
    q, k, v = qkv(13, 2, 4, 2, 2, 7, D)
    assert_close(llm.flash_attention_metal(q, k, v), oracle.attention(q, k, v), F32)


def test_flash_attention_metal_of_few_numbers(llm, metal):
    # MLX passes arrays of fewer than 8 elements in another kind of memory.
    q, k, v = qkv(14, 1, 1, 1, 1, 1, 4)
    assert_close(llm.flash_attention_metal(q, k, v), v, F32)


@pytest.mark.parametrize("scale", [1.5, 0.0])
def test_flash_attention_metal_takes_a_scale(llm, metal, scale):
    q, k, v = qkv(15, 1, 2, 1, 3, 20, 64)
    # Scores of a dozen units, of which exp makes a relative error.
    want = oracle.attention(q, k, v, scale=scale)
    assert_close(llm.flash_attention_metal(q, k, v, scale), want, rounding(mx.float32, 1000))


@pytest.mark.parametrize("order", ["rising", "falling"])
def test_flash_attention_metal_when_the_maximum_moves(llm, metal, order):
    q, k, v = qkv(16, 1, 2, 2, 3, 40, 64)
    sizes = mx.repeat(mx.array([0.1, 1.0, 10.0, 60.0]), 10)[:, None]
    k = k * (sizes if order == "rising" else sizes[::-1])
    # Scores reach hundreds and lose as many units in the last place.
    assert_close(llm.flash_attention_metal(q, k, v), oracle.attention(q, k, v), rounding(mx.float32, 4000))


@pytest.mark.parametrize("shift", [-300.0, 300.0])
def test_flash_attention_metal_does_not_overflow(llm, metal, shift):
    q, k, v = qkv(17, 1, 1, 1, 5, 30, 64)
    q[..., 0], k[..., 0] = 1.0, shift
    got = llm.flash_attention_metal(q, k, v, scale=1.0)
    assert_close(got, oracle.attention(q, k, v, scale=1.0), rounding(mx.float32, 3000))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_flash_attention_metal_of_16_bits_accumulates_in_32(llm, metal, dtype):
    q, k, v = qkv(18, 1, 2, 1, 3, 400, 64, dtype)
    v = v * 0.1 + 1
    got = llm.flash_attention_metal(q, k, v)
    # Only the result is rounded, and all results are positive: half a step is what that may cost.
    half_a_step = Tolerance(rounding(dtype, 0.51).rtol, 0.0)
    assert_close(got, oracle.attention(q, k, v), half_a_step, dtype=dtype)


def test_flash_attention_metal_of_arrays_with_gaps(llm, metal):
    q, k, v = (random_array(19 + i, 2, 5, 4, 64).transpose(0, 2, 1, 3) for i in range(3))
    assert_close(llm.flash_attention_metal(q, k, v), oracle.attention(q, k, v), F32)


def test_flash_attention_metal_builds_its_kernel_once(llm, metal, monkeypatch):
    built, make = [], mx.fast.metal_kernel
    monkeypatch.setattr(mx.fast, "metal_kernel", lambda **given: built.append(given) or make(**given))
    for length in (1, 2, 3):
        mx.eval(llm.flash_attention_metal(*qkv(20, 1, 2, 1, length, 3, 64)))
    # None, if an earlier call has built it.
    assert len(built) <= 1


@pytest.mark.parametrize(
    ("H", "G", "L", "S", "causal"), [(4, 3, 2, 2, False), (2, 4, 2, 2, False), (2, 1, 3, 2, True)]
)
def test_flash_attention_metal_rejects_what_it_cannot_do(llm, metal, H, G, L, S, causal):
    with pytest.raises(UserError):
        llm.flash_attention_metal(*qkv(21, 1, H, G, L, S, 64), causal=causal)


def test_flash_attention_metal_without_metal(llm, monkeypatch):
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    with pytest.raises(UserError):
        llm.flash_attention_metal(*qkv(22, 1, 2, 1, 2, 2, 64))
