"""Day 3.2: the C++ kernels store and read blocks of 8 bits."""

import math

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.tolerance import EXACT, F32, as_float64, assert_close, rounding
from tests.helpers.toy import random_array
from tests.week_3.test_day_2_quantized import STEPS, Step, restored, whole_numbers

from tiny_llm_lab.types.computing.paged import Slice

pytestmark = pytest.mark.task("3.2.5")


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("D", [1, 20, 64])
def test_kernel_stores_the_same_numbers(kernels, dtype, D):
    x = (random_array(1, 7, 3, 1, D) * mx.power(10.0, mx.arange(21).reshape(7, 3, 1, 1) % 4)).astype(dtype)
    x[2, 1] = 0
    numbers, scales = kernels.quantize_rows(x)
    want, factors = whole_numbers(x)
    assert (numbers.dtype, scales.dtype) == (mx.int8, mx.float32)
    assert_close(
        scales, factors, EXACT, what="scales, as quantize_rows in MLX gives them", legend="[T, G, 1]"
    )
    assert_close(numbers, want, EXACT, what="numbers", legend="[T, G, 1, D]")


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_kernel_does_not_hide_what_is_no_number(kernels, bad):
    _, scales = kernels.quantize_rows(mx.array([[1.0, bad, 0.0], [1.0, 2.0, 0.0], [bad, 1.0, 2.0]]))
    assert np.isfinite(as_float64(scales)).tolist() == [False, True, False]


def paged(llm, kernels, step):
    """The step's attention by the kernel, over pools that MLX has filled."""
    step.run()
    slices = [Slice(ids, n - k, k) for ids, n, k in zip(step.ids, step.lengths, step.sizes, strict=True)]
    at, cache = llm.StepLayout.of(step.block_size, slices), step.cache
    rows = [q[:, q.shape[1] - new :] for q, new in zip(step.q, step.sizes, strict=True)]
    q = mx.concatenate(rows, axis=1).transpose(1, 0, 2)[:, :, None]
    where = (at.query_starts, at.lengths, at.block_tables, q.shape[-1] ** -0.5)
    scales = (cache.key_scales[1], cache.value_scales[1])
    return kernels.paged_attention(q, cache.keys[1], cache.values[1], *where, scales)


@pytest.mark.parametrize("block_size", [1, 3, 32, 64])
@pytest.mark.parametrize(("lengths", "sizes"), STEPS)
def test_kernel_attends_over_8_bits(llm, kernels, lengths, sizes, block_size):
    step = Step(llm, lengths, sizes, block_size, D=20)
    got = paged(llm, kernels, step)
    assert_close(got, step.want(restored), F32, dtype=mx.float32, legend="[T, 1, H * D]")


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_kernel_attends_over_8_bits_in_16_bits(llm, kernels, dtype):
    step = Step(llm, [70, 31, 64, 9], [6, 1, 64, 1], 32, D=64, dtype=dtype)
    got = paged(llm, kernels, step)
    # One rounding, that of the result: what is stored is read in float32.
    assert_close(got, step.want(restored), rounding(dtype, 1), dtype=dtype, legend="[T, 1, H * D]")
