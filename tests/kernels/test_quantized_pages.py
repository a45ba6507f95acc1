"""Blocks of 8 bits with the C++ kernels on: one bit never depends on chunks, company, blocks or threads."""

import mlx.core as mx
import pytest
from tests.helpers.matrices import assert_same_bits, evaluated
from tests.helpers.tolerance import assert_close, rounding
from tests.helpers.toy import random_array
from tests.kernels.test_invariance import kernels_on

__all__ = ["kernels_on"]


def test_stored_numbers_are_those_of_mlx(llm, k, dtype):
    x = random_array(3, 40, 2, 1, 72, dtype=dtype)
    for got, want in zip(k.quantize_rows(x), llm.quantize_rows(x), strict=True):
        assert_same_bits(got.astype(mx.float32), want.astype(mx.float32), "quantized rows")
    # Rows with gaps between them.
    numbers, _ = k.quantize_rows(x[:, :1])
    assert_same_bits(numbers.astype(mx.float32), k.quantize_rows(x)[0][:, :1].astype(mx.float32), "others")


def test_scales_and_pools_that_do_not_fit(k):
    q, pool, scales = evaluated(mx.zeros((1, 4, 1, 8)), mx.zeros((3, 2, 4, 8), mx.int8), mx.zeros((3, 2, 4)))
    table = mx.array([[0]], mx.int32)

    def attend(pool, kv_scales):
        return k.paged_attention(q, pool, pool, [0, 1], [1], table, 1.0, kv_scales)

    mx.eval(attend(pool, (scales, scales)))
    for pools, kv_scales in (
        (pool, None),
        (pool.astype(mx.float32), (scales, scales)),
        (pool, (scales, scales[:2])),
        (pool, (scales.astype(mx.float16), scales)),
        (pool.astype(mx.int32), None),
    ):
        with pytest.raises(ValueError):
            attend(pools, kv_scales)


@pytest.mark.parametrize("block_size", [1, 3, 32, 64])
def test_a_stored_number_counts_times_its_scale(k, block_size):
    q, rows = random_array(1, 3, 4, 1, 40), random_array(2, 7, 2, block_size, 40) * 3
    numbers, scales = k.quantize_rows(rows)
    table, length = mx.array([[5, 0, 3]], mx.int32), 3 * block_size
    no_numbers = mx.full((7, 2, block_size, 64), mx.nan)

    def attend(pool, kv_scales, dtype):
        # Wider rows of no numbers: what a thread had in its buffers before must not show.
        mx.eval(
            k.paged_attention(mx.ones((3, 4, 1, 64)), no_numbers, no_numbers, [0, 3], [length], table, 1.0)
        )
        return k.paged_attention(q.astype(dtype), pool, pool, [0, 3], [length], table, 1.0, kv_scales)

    floats = numbers * scales[..., None]
    got, want = attend(numbers, (scales, scales), mx.float32), attend(floats, None, mx.float32)
    assert_same_bits(got, want, "8 bits")
    # Weights are rounded to bfloat16 where such numbers are multiplied in pairs.
    got, want = attend(numbers, (scales, scales), mx.bfloat16), attend(floats, None, mx.bfloat16)
    assert_close(got, want.astype(mx.float32), rounding(mx.bfloat16))


def test_pools_that_are_views(k):
    q, wide = random_array(1, 3, 4, 1, 8), random_array(2, 6, 2, 4, 8)
    pool, scales = evaluated(*k.quantize_rows(wide))
    table = mx.array([[2, 0]], mx.int32)

    def attend(pool, scales):
        return k.paged_attention(q, pool, pool, [0, 3], [7], table, 1.0, (scales, scales))

    for view in (lambda a: a[::2], lambda a: a[3:], lambda a: a[:3, ::-1]):
        views = view(pool), view(scales)
        want = attend(*(mx.contiguous(each) for each in views))
        assert_same_bits(attend(*views), want, "attention over a view")
