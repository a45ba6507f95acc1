"""The recipe that measures what rounded activations cost: its weights, its rounding, its figures."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from benchmarks.measurements.activation_error.checkpoint import perplexity, write_packed
from benchmarks.measurements.activation_error.figures import entropy, figures
from benchmarks.measurements.activation_error.sides import EXACT, OWN, logits_of, q4_0, rounded, write_dense
from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.runtime import native
from tiny_llm_lab.types import QuantizedWeights
from tiny_llm_lab.types.packages import PACKAGES

MODEL = "qwen3-shrunk,vocab=384"
TOKENS = np.random.default_rng(0).integers(0, 384, (2, 24)).astype(np.int32)


@pytest.mark.parametrize("every", [0, 64])
def test_all_formats_hold_the_same_numbers(tmp_path, every):
    packed, dense = tmp_path / "packed", tmp_path / "dense"
    write_packed(MODEL, every, packed)
    write_dense(packed, dense)
    plain = load_checkpoint(dense, dtype="float32").weights
    for name, w in load_checkpoint(packed, dtype="float32").weights.items():
        decoded = w.dequantized() if isinstance(w, QuantizedWeights) else w
        assert mx.array_equal(decoded, plain[name]), name
        if isinstance(w, QuantizedWeights):
            blocks = q4_0(w).reshape(-1, 18)
            integers = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], 1).astype(np.float32) - 8
            numbers = integers * blocks[:, :2].copy().view(np.float16).astype(np.float32)
            assert np.array_equal(numbers.reshape(decoded.shape), np.array(decoded)), name
            # OpenVINO finds the scale by the largest number.
            assert np.all(integers.reshape(-1, 64).min(1) == -8)


@pytest.mark.parametrize("group", [16, 32, 64])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_rounds_to_the_nearest_of_255_numbers(group, dtype):
    draw = np.random.default_rng(group)
    x = mx.array(draw.standard_normal((5, 192)) * np.exp(draw.normal(0, 3, (5, 192)))).astype(dtype)
    x[1], x[2, :64] = 0, mx.arange(64) - 31.5
    exact = np.array(x.astype(mx.float32)).astype(np.float64).reshape(5, -1, group)
    step = np.abs(exact).max(-1, keepdims=True) / 127
    near = np.divide(exact, step, out=np.zeros_like(exact), where=step > 0)
    found = np.array(rounded(x, group)).astype(np.float64).reshape(exact.shape)
    # A number between two integers may go to either, where float32 can't tell which is nearer.
    assert np.all(np.abs(found - near * step) <= (0.5 + 1e-4) * step)
    integers = np.divide(found, step, out=np.zeros_like(found), where=step > 0)
    assert np.allclose(integers, np.rint(integers), atol=1e-4) and np.abs(integers).max() <= 127 + 1e-4


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 5, 70])
def test_the_kernels_round_as_arrays_do(rows, bits, dtype):
    x, plain = (mx.random.normal((n, 512), key=mx.random.key(n)).astype(dtype) for n in (rows, 96))
    x = x * mx.exp(mx.random.normal(x.shape, key=mx.random.key(1))).astype(dtype)
    w = QuantizedWeights(*mx.quantize(plain, group_size=64, bits=bits), 64, bits)
    kernels, wide = native.load(PACKAGES["ref"]), x.astype(mx.float32)
    (exact,) = kernels.linear(wide, [w])
    (arrays,) = kernels.linear(rounded(x, 32), [w])
    (found,) = kernels.linear(x, [replace(w, activation_bits=8)])

    def rms(difference):
        return float(mx.sqrt(mx.mean(difference.astype(mx.float32) ** 2) / mx.mean(exact**2)))

    assert rms(arrays - exact) > 1e-3
    assert rms(found - arrays.astype(dtype)) < 1e-4, "not the rounding that the recipe describes"


def test_outliers_cost_more(tmp_path):
    error = {}
    for every in (0, 64):
        packed = tmp_path / str(every)
        write_packed(MODEL, every, packed)
        exact = logits_of(EXACT, packed, TOKENS)
        found = {name: figures(exact, logits_of(name, packed, TOKENS)) for name in OWN}
        assert found[EXACT] == {"rms": 0, "kl": 0, "equal": 1}
        error[every] = [found[f"8 bits in {group}"]["rms"] for group in (16, 32, 64)]
    assert all(large > small for large, small in zip(error[64], error[0], strict=True))


def test_figures_of_known_distributions():
    p, q = np.array([[0.5, 0.25, 0.25], [1 / 3] * 3]), np.array([[0.25, 0.5, 0.25], [1 / 3] * 3])
    found = figures(np.log(p) + 7, np.log(q) + 7)
    assert found["kl"] == pytest.approx(0.25 * np.log(2) / 2)
    assert found["equal"] == 0.5
    difference, right = np.log(p) - np.log(q), np.log(p) + 7
    assert found["rms"] == pytest.approx(np.sqrt((difference**2).sum() / (right**2).sum()))
    assert entropy(np.log(p)) == pytest.approx((1.5 * np.log(2) + np.log(3)) / 2)
    # Two rows of two tokens: only the logits of each row's first token count.
    logits = np.log([[0.5, 0.5], [0.9, 0.1], [0.75, 0.25], [0.9, 0.1]])
    assert perplexity(logits, np.array([[0, 1], [1, 1]])) == pytest.approx((1 / (0.5 * 0.25)) ** 0.5)
