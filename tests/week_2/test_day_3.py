"""Day 2.3: quantized layers in the model, and the products that they call."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import oracle, qwen_oracle
from tests.helpers.tolerance import F32, F32_MODEL, Tolerance, as_float64, assert_close, peak_bytes, rounding
from tests.helpers.toy import QWEN2, QWEN3, random_array, random_tokens, toy_weights

from tiny_llm_lab.types import QuantizedWeights, UserError


def quantized(w, bits=4, group_size=32):
    return QuantizedWeights(*mx.quantize(w, group_size=group_size, bits=bits), group_size, bits)


def dense(w):
    return oracle.dequantized(w.weight, w.scales, w.biases, w.group_size, w.bits)


@pytest.mark.task("2.3.1")
@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (4, 64), (8, 64), (3, 32), (2, 128), (6, 64)])
@pytest.mark.parametrize("shape", [(128,), (3, 128), (2, 5, 128)])
def test_quantized_linear(llm, bits, group_size, shape):
    w = quantized(random_array(1, 9, 128), bits, group_size)
    x = random_array(2, *shape) / 12
    got = llm.quantized_linear(x, w)
    assert_close(got, as_float64(x) @ dense(w).T, F32, legend="[..., O]", dtype=mx.float32)


@pytest.mark.task("2.3.1")
@pytest.mark.parametrize("name", ["quantized_linear", "linear"])
def test_quantized_linear_adds_the_bias(llm, name):
    w, bias = quantized(random_array(3, 7, 64)), random_array(4, 7)
    x = random_array(5, 2, 3, 64) / 8
    want = as_float64(x) @ dense(w).T
    assert_close(getattr(llm, name)(x, w, bias), want + as_float64(bias), legend="[..., O]")
    assert_close(getattr(llm, name)(x, w), want, legend="[..., O]")


@pytest.mark.task("2.3.1")
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_quantized_linear_of_16_bits(llm, dtype):
    w = quantized(random_array(6, 5, 512, dtype=dtype))
    x = (random_array(7, 4, 512) / 16).astype(dtype)
    bias = random_array(8, 5, dtype=dtype)
    want = as_float64(x) @ dense(w).T
    # MLX's own operator on these inputs is off by several percent on the CPU.
    assert_close(llm.quantized_linear(x, w), want, rounding(dtype, 2), dtype=dtype)
    assert_close(llm.quantized_linear(x, w, bias), want + as_float64(bias), rounding(dtype, 3), dtype=dtype)


@pytest.mark.task("2.3.1")
def test_quantized_linear_of_32_bits_and_16_bit_scales(llm):
    w = quantized(random_array(9, 5, 64, dtype=mx.bfloat16))
    x = random_array(10, 3, 64) / 8
    assert_close(llm.quantized_linear(x, w), as_float64(x) @ dense(w).T, F32, dtype=mx.float32)


@pytest.mark.task("2.3.1")
def test_linear_stays_dense_for_dense_weights(llm):
    llm.quantized_linear(mx.ones((1, 32)), quantized(mx.ones((2, 32))))
    x, w = random_array(11, 3, 5), random_array(12, 4, 5)
    assert_close(llm.linear(x, w), as_float64(x) @ as_float64(w).T)


@pytest.mark.task("2.3.1")
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_quantized_embedding(llm, bits):
    llm.quantized_linear(mx.ones((1, 32)), quantized(mx.ones((2, 32))))
    w = quantized(random_array(13, 300, 64), bits)
    table = llm.Embedding(300, 64, w)
    tokens = mx.array([[0, 299, 5], [5, 5, 17]])
    assert_close(table(tokens), dense(w)[np.array(tokens)], F32, legend="[B, L, E]", dtype=mx.float32)
    x = random_array(14, 2, 3, 64) / 8
    assert_close(table.as_linear(x), as_float64(x) @ dense(w).T, F32, legend="[..., V]")


@pytest.mark.task("2.3.1")
def test_quantized_embedding_decodes_only_the_rows_it_needs(llm):
    llm.quantized_linear(mx.ones((1, 32)), quantized(mx.ones((2, 32))))
    w = quantized(random_array(15, 20_000, 64))
    mx.eval(w.weight, w.scales, w.biases)
    table = llm.Embedding(20_000, 64, w)
    assert peak_bytes(lambda: table(mx.array([[1, 19_999]]))) < 20_000 * 64 * 4 / 10


@pytest.mark.task("2.3.1")
@pytest.mark.parametrize("config", [QWEN3, QWEN2], ids=lambda config: config.model_type)
def test_quantized_model(llm, config):
    plain = toy_weights(config)
    # Matrices of 16-bit checkpoints are packed, vectors never are.
    packed = {name: quantized(w, 8) if w.ndim == 2 else w for name, w in plain.items()}
    decoded = {name: dense(w) if isinstance(w, QuantizedWeights) else w for name, w in packed.items()}
    tokens = random_tokens(16, 2, 7)
    got = llm.QwenModel(config, packed)(tokens)
    assert_close(got, qwen_oracle.logits(config, decoded, tokens), F32_MODEL, legend="[B, L, V]")


@pytest.mark.task("2.3.2")
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


@pytest.mark.task("2.3.2")
@pytest.mark.parametrize("shape", [(64,), (2, 5, 64)])
def test_quantized_matmul_metal_keeps_leading_dimensions(llm, metal, shape):
    w = quantized(random_array(19, 12, 64))
    x = random_array(20, *shape) / 8
    assert_close(llm.quantized_matmul_metal(x, w), as_float64(x) @ dense(w).T, F32, legend="[..., O]")


@pytest.mark.task("2.3.2")
def test_quantized_matmul_metal_of_an_array_with_gaps(llm, metal):
    w = quantized(random_array(21, 12, 64))
    x = (random_array(22, 64, 10) / 8).T[::2]
    assert_close(llm.quantized_matmul_metal(x, w), as_float64(x) @ dense(w).T, F32, legend="[M, O]")


@pytest.mark.task("2.3.2")
def test_quantized_matmul_metal_of_few_scales(llm, metal):
    # MLX passes arrays of fewer than 8 elements in another kind of memory.
    w = quantized(random_array(23, 3, 64))
    x = random_array(24, 2, 64) / 8
    assert_close(llm.quantized_matmul_metal(x, w), as_float64(x) @ dense(w).T, F32, legend="[M, O]")


@pytest.mark.task("2.3.2")
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_quantized_matmul_metal_of_16_bits_accumulates_in_32(llm, metal, dtype):
    w = quantized(mx.abs(random_array(25, 20, 4096)).astype(dtype), group_size=64)
    x = (mx.abs(random_array(26, 3, 4096)) / 2048).astype(dtype)
    got = llm.quantized_matmul_metal(x, w)
    # Only the result is rounded, and all results are positive: half a step is what that may cost.
    half_a_step = Tolerance(rounding(dtype, 0.51).rtol, 0.0)
    assert_close(got, as_float64(x) @ dense(w).T, half_a_step, dtype=dtype)


@pytest.mark.task("2.3.2")
def test_quantized_matmul_metal_of_32_bits_and_16_bit_scales(llm, metal):
    w = quantized(random_array(27, 9, 64, dtype=mx.bfloat16))
    x = random_array(28, 3, 64) / 8
    assert_close(llm.quantized_matmul_metal(x, w), as_float64(x) @ dense(w).T, F32, dtype=mx.float32)


@pytest.mark.task("2.3.2")
def test_quantized_matmul_metal_builds_its_kernel_once(llm, metal, monkeypatch):
    built, make = [], mx.fast.metal_kernel
    monkeypatch.setattr(mx.fast, "metal_kernel", lambda **given: built.append(given) or make(**given))
    for rows in (1, 2, 3):
        mx.eval(llm.quantized_matmul_metal(mx.ones((rows, 64)), quantized(mx.ones((12, 64)))))
    # None, if an earlier call has built it.
    assert len(built) <= 1


@pytest.mark.task("2.3.2")
@pytest.mark.parametrize(("bits", "group_size", "columns"), [(3, 32, 64), (2, 64, 64), (4, 32, 96)])
def test_quantized_matmul_metal_rejects_what_it_cannot_do(llm, metal, bits, group_size, columns):
    with pytest.raises(UserError):
        llm.quantized_matmul_metal(mx.ones((2, columns)), quantized(mx.ones((12, 64)), bits, group_size))


@pytest.mark.task("2.3.2")
def test_quantized_matmul_metal_without_metal(llm, monkeypatch):
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    with pytest.raises(UserError):
        llm.quantized_matmul_metal(mx.ones((2, 64)), quantized(mx.ones((12, 64))))


def times(kernels, x, *weights):
    return kernels.linear(x, list(weights))


def rows_of_many_sizes(seed, rows, inner, dtype):
    """Each twice as large as the one before, up to 8: one row's scale is wrong for the next."""
    sizes = 2.0 ** (mx.arange(rows)[:, None] % 4)
    return (random_array(seed, rows, inner) / inner**0.5 * sizes).astype(dtype)


@pytest.mark.task("2.3.3")
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize(("rows", "outputs", "groups"), [(1, 1, 1), (2, 9, 3), (7, 130, 1), (8, 33, 17)])
def test_linear_of_few_rows(kernels, bits, group_size, rows, outputs, groups):
    inner = groups * group_size
    w = quantized(random_array(30, outputs, inner), bits, group_size)
    x = random_array(31, rows, inner) / inner**0.5
    (got,) = times(kernels, x, w)
    assert_close(got, as_float64(x) @ dense(w).T, F32, legend="[M, O]", dtype=mx.float32)


@pytest.mark.task("2.3.3")
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (4, 128), (8, 64)])
def test_linear_of_few_rows_of_16_bits(kernels, dtype, bits, group_size):
    w = quantized(random_array(46, 9, 384), bits, group_size)
    x = rows_of_many_sizes(47, 6, 384, dtype)
    (got,) = times(kernels, x, w)
    assert_close(got, as_float64(x) @ dense(w).T, rounding(dtype, 1), legend="[M, O]", dtype=dtype)


@pytest.mark.task("2.3.3")
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("inner", [1, 7, 64, 100])
def test_linear_of_few_rows_of_a_dense_matrix(kernels, dtype, inner):
    w, x = random_array(32, 9, inner, dtype=dtype), random_array(33, 2, inner) / inner**0.5
    (got,) = times(kernels, x, w)
    assert_close(got, as_float64(x) @ as_float64(w).T, F32, legend="[M, O]", dtype=mx.float32)


@pytest.mark.task("2.3.3")
def test_linear_of_several_matrices(kernels):
    x = random_array(34, 1, 128) / 12
    ws = [quantized(random_array(35 + i, outputs, 128)) for i, outputs in enumerate((5, 300, 17))]
    for got, w in zip(times(kernels, x, *ws), ws, strict=True):
        assert_close(got, as_float64(x) @ dense(w).T, F32, legend="[M, O]")


@pytest.mark.task("2.3.4")
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize(("rows", "outputs", "groups"), [(9, 1, 1), (10, 9, 3), (49, 33, 1), (11, 40, 19)])
def test_linear_of_many_rows(kernels, bits, group_size, rows, outputs, groups):
    inner = groups * group_size
    w = quantized(random_array(40, outputs, inner), bits, group_size)
    x = random_array(41, rows, inner) / inner**0.5
    (got,) = times(kernels, x, w)
    assert_close(got, as_float64(x) @ dense(w).T, F32, legend="[M, O]", dtype=mx.float32)


@pytest.mark.task("2.3.4")
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (4, 128), (8, 64)])
def test_linear_of_many_rows_of_16_bits(kernels, dtype, bits, group_size):
    w = quantized(random_array(48, 9, 640), bits, group_size)
    x = rows_of_many_sizes(49, 11, 640, dtype)
    (got,) = times(kernels, x, w)
    assert_close(got, as_float64(x) @ dense(w).T, rounding(dtype, 1), legend="[M, O]", dtype=dtype)


@pytest.mark.task("2.3.4")
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("inner", [1, 7, 64, 600])
def test_linear_of_many_rows_of_a_dense_matrix(kernels, dtype, inner):
    w, x = random_array(42, 35, inner, dtype=dtype), random_array(43, 10, inner) / inner**0.5
    (got,) = times(kernels, x, w)
    assert_close(got, as_float64(x) @ as_float64(w).T, F32, legend="[M, O]", dtype=mx.float32)


@pytest.mark.task("2.3.4")
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (4, 64), (8, 128), (0, 0)])
def test_a_row_alone_equals_the_same_row_among_others(kernels, dtype, bits, group_size):
    # To the last bit: a token must not depend on who else is in the batch.
    w = random_array(44, 37, 640)
    w = quantized(w, bits, group_size) if bits else w
    x = (random_array(45, 50, 640) / 25).astype(dtype)
    (among_others,) = times(kernels, x, w)
    for row in (0, 1, 24, 47, 48, 49):
        (alone,) = times(kernels, x[row : row + 1], w)
        differing = np.flatnonzero(as_float64(alone[0]) != as_float64(among_others[row]))
        assert differing.size == 0, f"row {row} differs at columns {differing[:8].tolist()}"
