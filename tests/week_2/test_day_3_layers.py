"""Day 2.3: quantized layers in the model."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import qwen_oracle
from tests.helpers.matrices import numbers as dense
from tests.helpers.matrices import quantized
from tests.helpers.tolerance import F32, F32_MODEL, as_float64, assert_close, peak_bytes, rounding
from tests.helpers.toy import QWEN2, QWEN3, random_array, random_tokens, toy_weights

from tiny_llm_lab.types import QuantizedWeights

pytestmark = pytest.mark.task("2.3.1")


@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (4, 64), (8, 64), (3, 32), (2, 128), (6, 64)])
@pytest.mark.parametrize("shape", [(128,), (3, 128), (2, 5, 128)])
def test_quantized_linear(llm, bits, group_size, shape):
    w = quantized(random_array(1, 9, 128), bits, group_size)
    x = random_array(2, *shape) / 12
    got = llm.quantized_linear(x, w)
    assert_close(got, as_float64(x) @ dense(w).T, F32, legend="[..., O]", dtype=mx.float32)


@pytest.mark.parametrize("name", ["quantized_linear", "linear"])
def test_quantized_linear_adds_the_bias(llm, name):
    w, bias = quantized(random_array(3, 7, 64)), random_array(4, 7)
    x = random_array(5, 2, 3, 64) / 8
    want = as_float64(x) @ dense(w).T
    assert_close(getattr(llm, name)(x, w, bias), want + as_float64(bias), legend="[..., O]")
    assert_close(getattr(llm, name)(x, w), want, legend="[..., O]")


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_quantized_linear_of_16_bits(llm, dtype):
    w = quantized(random_array(6, 5, 512, dtype=dtype))
    x = (random_array(7, 4, 512) / 16).astype(dtype)
    bias = random_array(8, 5, dtype=dtype)
    want = as_float64(x) @ dense(w).T
    # MLX's own operator on these inputs is off by several percent on the CPU.
    assert_close(llm.quantized_linear(x, w), want, rounding(dtype, 2), dtype=dtype)
    assert_close(llm.quantized_linear(x, w, bias), want + as_float64(bias), rounding(dtype, 3), dtype=dtype)


def test_quantized_linear_of_32_bits_and_16_bit_scales(llm):
    w = quantized(random_array(9, 5, 64, dtype=mx.bfloat16))
    x = random_array(10, 3, 64) / 8
    assert_close(llm.quantized_linear(x, w), as_float64(x) @ dense(w).T, F32, dtype=mx.float32)


def test_linear_stays_dense_for_dense_weights(llm):
    llm.quantized_linear(mx.ones((1, 32)), quantized(mx.ones((2, 32))))
    x, w = random_array(11, 3, 5), random_array(12, 4, 5)
    assert_close(llm.linear(x, w), as_float64(x) @ as_float64(w).T)


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_quantized_embedding(llm, bits):
    llm.quantized_linear(mx.ones((1, 32)), quantized(mx.ones((2, 32))))
    w = quantized(random_array(13, 300, 64), bits)
    table = llm.Embedding(300, 64, w)
    tokens = mx.array([[0, 299, 5], [5, 5, 17]])
    assert_close(table(tokens), dense(w)[np.array(tokens)], F32, legend="[B, L, E]", dtype=mx.float32)
    x = random_array(14, 2, 3, 64) / 8
    assert_close(table.as_linear(x), as_float64(x) @ dense(w).T, F32, legend="[..., V]")


def test_quantized_embedding_decodes_only_the_rows_it_needs(llm):
    llm.quantized_linear(mx.ones((1, 32)), quantized(mx.ones((2, 32))))
    w = quantized(random_array(15, 20_000, 64))
    mx.eval(w.weight, w.scales, w.biases)
    table = llm.Embedding(20_000, 64, w)
    assert peak_bytes(lambda: table(mx.array([[1, 19_999]]))) < 20_000 * 64 * 4 / 10


@pytest.mark.parametrize("config", [QWEN3, QWEN2], ids=lambda config: config.model_type)
def test_quantized_model(llm, config):
    plain = toy_weights(config)
    # Matrices of 16-bit checkpoints are packed, vectors never are.
    packed = {name: quantized(w, 8) if w.ndim == 2 else w for name, w in plain.items()}
    decoded = {name: dense(w) if isinstance(w, QuantizedWeights) else w for name, w in packed.items()}
    tokens = random_tokens(16, 2, 7)
    got = llm.QwenModel(config, packed)(tokens)
    assert_close(got, qwen_oracle.logits(config, decoded, tokens), F32_MODEL, legend="[B, L, V]")
