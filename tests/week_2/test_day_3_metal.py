"""Day 2.3: the quantized product in Metal."""

import mlx.core as mx
import pytest
from tests.helpers.matrices import numbers as dense
from tests.helpers.matrices import quantized
from tests.helpers.tolerance import F32, Tolerance, as_float64, assert_close, rounding
from tests.helpers.toy import random_array

from tiny_llm_lab.types import UserError

pytestmark = pytest.mark.task("2.3.2")


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize(("rows", "outputs", "groups"), [(1, 9, 3), (7, 17, 1), (2, 33, 11)])
def test_quantized_matmul_metal(llm, metal, bits, group_size, rows, outputs, groups):
    inner = groups * group_size
    w = quantized(random_array(17, outputs, inner), bits, group_size)
    x = random_array(18, rows, inner) / inner**0.5
    got = llm.quantized_matmul_metal(x, w)
    assert_close(got, as_float64(x) @ dense(w).T, F32, legend="[M, O]", dtype=mx.float32)
    packed = (w.weight, w.scales, w.biases)
    want = mx.quantized_matmul(x, *packed, transpose=True, group_size=group_size, bits=bits)
    assert_close(got, want, F32, legend="[M, O]")


@pytest.mark.parametrize(
    ("outputs", "scales", "view"),
    [
        (12, mx.float32, lambda x: x[0]),
        (12, mx.float32, lambda x: x.reshape(2, 5, 64)),
        (12, mx.float32, lambda x: x.T.reshape(10, 64)),
        (12, mx.float32, lambda x: mx.contiguous(x.T).T[::2]),
        # MLX passes arrays of fewer than 8 elements in another kind of memory.
        (3, mx.float32, lambda x: x[:2]),
        (9, mx.bfloat16, lambda x: x[:3]),
    ],
    ids=["one row", "more dimensions", "transposed", "gaps", "few scales", "16-bit scales"],
)
def test_quantized_matmul_metal_of_any_array(llm, metal, outputs, scales, view):
    w, x = quantized(random_array(19, outputs, 64, dtype=scales)), view(random_array(20, 10, 64) / 8)
    got = llm.quantized_matmul_metal(x, w)
    assert_close(got, as_float64(x) @ dense(w).T, F32, legend="[..., O]", dtype=mx.float32)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_quantized_matmul_metal_of_16_bits_accumulates_in_32(llm, metal, dtype):
    w = quantized(mx.abs(random_array(25, 20, 4096)).astype(dtype), group_size=64)
    x = (mx.abs(random_array(26, 3, 4096)) / 2048).astype(dtype)
    got = llm.quantized_matmul_metal(x, w)
    # Only the result is rounded, and all results are positive: half a step is what that may cost.
    half_a_step = Tolerance(rounding(dtype, 0.51).rtol, 0.0)
    assert_close(got, as_float64(x) @ dense(w).T, half_a_step, dtype=dtype)


def test_quantized_matmul_metal_builds_its_kernel_once(llm, metal, monkeypatch):
    built, make = [], mx.fast.metal_kernel
    monkeypatch.setattr(mx.fast, "metal_kernel", lambda **given: built.append(given) or make(**given))
    for rows in (1, 2, 3):
        mx.eval(llm.quantized_matmul_metal(mx.ones((rows, 64)), quantized(mx.ones((12, 64)))))
    # None, if an earlier call has built it.
    assert len(built) <= 1


@pytest.mark.parametrize(("bits", "group_size", "columns"), [(3, 32, 64), (2, 64, 64), (4, 32, 96)])
def test_quantized_matmul_metal_rejects_what_it_cannot_do(llm, metal, bits, group_size, columns):
    with pytest.raises(UserError):
        llm.quantized_matmul_metal(mx.ones((2, columns)), quantized(mx.ones((12, 64)), bits, group_size))


def test_quantized_matmul_metal_without_metal(llm, monkeypatch):
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    with pytest.raises(UserError):
        llm.quantized_matmul_metal(mx.ones((2, 64)), quantized(mx.ones((12, 64))))
