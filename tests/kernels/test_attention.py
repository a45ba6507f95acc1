"""Attention against float64: query [B, H, L, D] over the stored tokens of key and value [B, G, S, D]."""

import math

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import oracle
from tests.helpers.matrices import assert_same_bits, evaluated
from tests.helpers.tolerance import assert_close, of_kernel
from tests.helpers.toy import random_array


def want(q, key, value, lengths, causal=True):
    """Every row alone, in float64."""
    lengths = [lengths] * len(q) if isinstance(lengths, int) else lengths
    rows = [slice(b, b + 1) for b in range(len(q))]
    parts = [
        oracle.attention(q[row], key[row, :, :n], value[row, :, :n], causal=causal)
        for row, n in zip(rows, lengths, strict=True)
    ]
    return np.concatenate(parts)


def of_attention(target, q, key, value, lengths, causal=True):
    """What attention may be off by: where bfloat16 numbers are multiplied in pairs, weights are rounded to
    bfloat16 first, by 2^-9 of themselves at most."""
    if q.dtype != mx.bfloat16:
        return of_kernel(target, q.dtype)
    spread = want(q, key, mx.abs(value), lengths, causal) + np.abs(target)
    return of_kernel(target, q.dtype, 2.0**-9 * float(np.max(spread)))


def qkv(seed, B, H, G, L, S, D, dtype=mx.float32):
    shapes = [(B, H, L, D), (B, G, S, D), (B, G, S, D)]
    return evaluated(*(random_array(seed + i, *shape, dtype=dtype) for i, shape in enumerate(shapes)))


def check(k, q, key, value, lengths, causal=True, what="attention"):
    got = k.attention(q, key, value, lengths, causal, 1 / math.sqrt(q.shape[-1]))
    target = want(q, key, value, lengths, causal)
    tolerance = of_attention(target, q, key, value, lengths, causal)
    assert_close(got, target, tolerance, dtype=q.dtype, what=what, legend="[B, H, L, D]")


@pytest.mark.parametrize("causal", [True, False])
def test_lengths_around_the_edges_of_blocks(k, dtype, causal):
    for L in (1, 2, 7, 33, 66):
        for S in (L, L + 1, 32, 33, 63, 64, 65, 128, 129, 131):
            if S >= L:
                check(k, *qkv(S, 1, 4, 2, L, S, 64, dtype), S, causal, f"L {L}, S {S}")


@pytest.mark.parametrize("ratio", [1, 2, 4, 8, 24])
def test_heads_and_their_size(k, dtype, ratio):
    for D in (1, 7, 64, 80, 128):
        check(k, *qkv(D, 2, 2 * ratio, 2, 5, 40, D, dtype), 40, what=f"{ratio} query heads a kv head, D {D}")


@pytest.mark.parametrize("ratio", [25, 53, 530])
def test_more_query_heads_than_share_an_item(k, ratio):
    for L, S in ((5, 40), (1, 70)):
        q, key, value = qkv(ratio, 2, 2 * ratio, 2, L, S, 64)
        check(k, q, key, value, S, what=f"{ratio} query heads a kv head, L {L}")
        got = k.attention(q, key, value, S, True, 0.125)
        for head in (0, ratio - 1, ratio, 2 * ratio - 1):
            group = slice(head // ratio, head // ratio + 1)
            alone = k.attention(q[:, head : head + 1], key[:, group], value[:, group], S, True, 0.125)
            assert_same_bits(got[:, head : head + 1], alone, f"head {head} of {2 * ratio}")


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("causal", [True, False])
def test_what_lies_behind_a_row_does_not_show(k, dtype, garbage, causal):
    q, key, value = qkv(1, 4, 4, 2, 3, 70, 64, dtype)
    lengths = [3, 32, 69, 70]
    for b, n in enumerate(lengths):
        key[b, :, n:], value[b, :, n:] = garbage, garbage
    check(k, q, key, value, lengths, causal)


def test_views_as_the_model_makes_them(k, dtype):
    # Projections come as [B, L, heads, D]; a cache has room behind what is stored.
    (q, new, room) = evaluated(
        random_array(1, 2, 5, 4, 80, dtype=dtype),
        random_array(2, 2, 5, 2, 80, dtype=dtype),
        random_array(3, 3, 2, 64, 80, dtype=dtype),
    )
    new = new.transpose(0, 2, 1, 3)
    check(k, q.transpose(0, 2, 1, 3), new, new, 5, what="without a cache")
    check(k, q.transpose(0, 2, 1, 3), room[:2, :, :41], room[1:, :, 3:44], [41, 17], what="with a cache")
    check(k, q[:, -1:].transpose(0, 2, 1, 3), room[:2], room[1:], [64, 1], what="the last token")
    check(
        k,
        q.transpose(0, 2, 1, 3)[..., ::2],
        room[:2, ..., :40],
        room[1:, ..., 40:],
        64,
        what="parts of heads",
    )


def test_the_maximum_moves(k):
    q, key, value = qkv(5, 1, 2, 1, 6, 256, 16)
    sizes = mx.repeat(mx.array([0.1, 1.0, 10.0, 30.0]), 64)[:, None]
    for order in (sizes, sizes[::-1]):
        q8, moved = q * 0.25, key * order
        check(k, q8, moved, value, 256)


@pytest.mark.parametrize("shift", [-3000.0, 3000.0])
def test_scores_beyond_what_an_exponential_can_hold(k, shift):
    q, key, value = qkv(6, 1, 2, 2, 5, 100, 64)
    # Whole numbers in one column move all scores of a row by `shift` exactly.
    q, key = mx.round(q * 4) / 4, mx.round(key * 4) / 4
    q[..., 0], key[..., 0] = 8.0, shift
    check(k, q, key, value, 100)


def test_wrong_inputs_are_told(k):
    q, key, value = qkv(1, 2, 3, 2, 4, 9, 8)
    with pytest.raises(ValueError, match="2 kv heads do not divide 3 query heads"):
        k.attention(q, key, value, 9, True, 1.0)
    q, key, value = qkv(1, 2, 4, 2, 4, 9, 8)
    for lengths in (3, 10, [9, 3]):
        with pytest.raises(ValueError, match="length must be between"):
            k.attention(q, key, value, lengths, True, 1.0)
    with pytest.raises(ValueError, match="3 numbers for 2 rows"):
        k.attention(q, key, value, [9, 9, 9], True, 1.0)
