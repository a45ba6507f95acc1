"""Day 2.2: packed weights, read and multiplied: with array operations, then in four steps of C++."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import oracle
from tests.helpers.tolerance import F32, as_float64, assert_close, rounding
from tests.helpers.toy import random_array

from tiny_llm_lab.types import QuantizedWeights

FORMATS = pytest.mark.parametrize(
    ("bits", "group_size"), [(bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
)


def packed(seed, rows, columns, bits, group_size, dtype=mx.float32):
    """Every bit random, so that each place of each word matters; weights of size one."""
    rng = np.random.default_rng(seed)
    weight = rng.integers(0, 2**32, size=(rows, columns * bits // 32), dtype=np.uint32)
    scales = rng.uniform(0.5, 1.5, size=(rows, columns // group_size)) / 2**bits
    biases = rng.normal(size=(rows, columns // group_size)) / 2
    return (
        mx.array(weight),
        mx.array(scales.astype(np.float32)).astype(dtype),
        mx.array(biases.astype(np.float32)).astype(dtype),
    )


@pytest.mark.task("2.2.1")
@FORMATS
def test_dequantize(llm, bits, group_size):
    w = packed(1, 3, 256, bits, group_size)
    got = llm.dequantize_weights(*w, group_size, bits)
    assert_close(got, oracle.dequantized(*w, group_size, bits), F32, legend="[O, I]", dtype=mx.float32)
    assert_close(got, mx.dequantize(*w, group_size=group_size, bits=bits), F32, legend="[O, I]")


@pytest.mark.task("2.2.1")
@pytest.mark.parametrize("bits", [3, 4, 8])
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_dequantize_gives_the_dtype_of_the_scales(llm, bits, dtype):
    w = packed(3, 4, 128, bits, 64, dtype)
    got = llm.dequantize_weights(*w, 64, bits)
    # Rounded twice: the product and the sum.
    assert_close(got, oracle.dequantized(*w, 64, bits), rounding(dtype, 2), dtype=dtype)


BOTH_WAYS = pytest.mark.parametrize("transpose_b", [True, False])


@pytest.mark.task("2.2.2")
@FORMATS
@BOTH_WAYS
def test_quantized_matmul(llm, bits, group_size, transpose_b):
    weight, scales, biases = packed(10, 7, 256, bits, group_size)  # [O, I], or [I, O] without transposition
    dense = oracle.dequantized(weight, scales, biases, group_size, bits)
    a = random_array(11, 3, 256) / 16 if transpose_b else random_array(13, 3, 7) / 4
    got = llm.quantized_matmul(scales, biases, group_size, bits, a, weight, transpose_b)
    want = as_float64(a) @ (dense.T if transpose_b else dense)
    assert_close(got, want, F32, legend="[..., O]", dtype=mx.float32)


@pytest.mark.task("2.2.2")
@BOTH_WAYS
@pytest.mark.parametrize(
    ("leading", "rows"),
    [((), 64), ((1,), 64), ((2, 3), 64), ((2, 1, 4), 64), *(((2,), n) for n in (1000, 1024, 1025, 2500))],
)
def test_quantized_matmul_of_any_size(llm, transpose_b, leading, rows):
    weight, scales, biases = packed(14, rows, 64, 4, 32)  # square ones too
    a = random_array(15, *leading, 64 if transpose_b else rows) / rows**0.5
    dense = oracle.dequantized(weight, scales, biases, 32, 4)
    got = llm.quantized_matmul(scales, biases, 32, 4, a, weight, transpose_b)
    assert_close(got, as_float64(a) @ (dense.T if transpose_b else dense), legend="[..., O]")


@pytest.mark.task("2.2.2")
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("transpose_b", [True, False])
def test_quantized_matmul_of_16_bits_sums_in_32(llm, dtype, transpose_b):
    # Every weight is 3 * 0.25 + 0.25 = 1. A sum of ones stops at 2048 in float16 and at 256 in bfloat16.
    rows, columns = (2, 4096) if transpose_b else (4096, 32)
    weight = mx.full((rows, columns // 16), 0xFFFFFFFF, mx.uint32)
    scales = mx.full((rows, columns // 32), 0.25, dtype)
    a = mx.ones((1, 4096), dtype)
    got = llm.quantized_matmul(scales, scales, 32, 2, a, weight, transpose_b)
    assert_close(got, np.full((1, 2 if transpose_b else 32), 4096.0), rounding(dtype, 1), dtype=dtype)


@pytest.mark.task("2.2.2")
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_quantized_matmul_of_16_bits_is_rounded_once(llm, dtype):
    weight, scales, biases = packed(18, 5, 512, 4, 64, dtype)
    a = (random_array(19, 4, 512) / 16).astype(dtype)
    want = as_float64(a) @ oracle.dequantized(weight, scales, biases, 64, 4).T
    got = llm.quantized_matmul(scales, biases, 64, 4, a, weight)
    assert_close(got, want, rounding(dtype, 1), dtype=dtype)


@pytest.mark.task("2.2.2")
@pytest.mark.parametrize(("transpose_b", "columns"), [(True, 32), (True, 8), (False, 64), (False, 9)])
def test_quantized_matmul_rejects_other_inner_dimensions(llm, transpose_b, columns):
    weight, scales, biases = packed(20, 8, 64, 4, 32)
    with pytest.raises(ValueError):
        llm.quantized_matmul(scales, biases, 32, 4, mx.ones((2, columns)), weight, transpose_b)


STEPS = [
    pytest.param(step, marks=pytest.mark.task(task))
    for step, task in [(1, "2.2.3"), (2, "2.2.4"), (3, "2.2.5"), (4, "2.2.6")]
]
KERNEL_FORMATS = pytest.mark.parametrize(
    ("bits", "group_size"), [(bits, group) for bits in (4, 8) for group in (32, 64, 128)]
)


def product(step, kernels, seed, rows, outputs, inner, bits, group_size, dtype=mx.float32):
    """A step's product and the oracle's."""
    w = packed(seed, outputs, inner, bits, group_size, dtype)
    x = (random_array(seed + 1, rows, inner) / inner**0.5).astype(dtype)
    got = kernels.quantized_matmul_step(step, x, QuantizedWeights(*w, group_size, bits))
    return got, as_float64(x) @ oracle.dequantized(*w, group_size, bits).T


@pytest.mark.parametrize("step", STEPS)
@KERNEL_FORMATS
@pytest.mark.parametrize(("rows", "outputs", "groups"), [(1, 1, 1), (1, 9, 3), (3, 130, 2), (2, 65, 17)])
def test_a_step_of_the_ladder(kernels, step, bits, group_size, rows, outputs, groups):
    got, want = product(step, kernels, 30, rows, outputs, groups * group_size, bits, group_size)
    what = f"step {step} on rows of {groups * group_size} numbers in {groups * group_size * bits // 32} words"
    assert_close(got, want, F32, legend="[M, O]", dtype=mx.float32, what=what)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_a_step_of_the_ladder_of_16_bits(kernels, step, dtype):
    got, want = product(step, kernels, 32, 2, 33, 512, 4, 64, dtype)
    assert_close(got, want, rounding(dtype, 1), legend="[M, O]", dtype=dtype)


@pytest.mark.task("2.2.6")
@pytest.mark.parametrize(
    ("members", "rows", "columns"),
    # Few outputs may be too few for a team.
    [(1, 1, 1), (1, 3, 63), (1, 1, 64), (1, 2, 65), (1, 2, 1000), (2, 2, 1000), (3, 1, 3072)],
)
def test_every_output_is_computed_once(probe, members, rows, columns):
    calls, outputs_of = np.zeros((rows, columns), np.int32), np.zeros(members, np.int32)
    probe("quantized_matmul").probe_share(members, rows, columns, calls, outputs_of)
    assert calls.min() == 1, f"output {np.argwhere(calls == calls.min())[0].tolist()} is not computed"
    assert calls.max() == 1, f"output {np.argwhere(calls > 1)[0].tolist()} is computed {calls.max()} times"


@pytest.mark.task("2.2.6")
@pytest.mark.parametrize("members", [2, 3])
def test_every_member_takes_part(probe, members):
    outputs_of = np.zeros(members, np.int32)
    calls = np.zeros((2, 1000), np.int32)
    probe("quantized_matmul").probe_share(members, 2, 1000, calls, outputs_of)
    assert outputs_of.min() > 0, f"members computed {outputs_of.tolist()} outputs: one of them waits in vain"
