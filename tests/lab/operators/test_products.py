"""Products, look-ups and experts of the `mlx` set, against float64."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import experts, oracle
from tests.helpers.matrices import numbers, packed, product
from tests.helpers.tolerance import EXACT, F32, as_float64, assert_close, rounding
from tests.helpers.toy import random_array

PACKINGS = [(bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
BITS = [2, 3, 4, 5, 6, 8]


def scaled(seed, rows, columns, dtype):
    """A matrix whose products with normal numbers have size one."""
    return (random_array(seed, rows, columns) / columns**0.5).astype(dtype)


@pytest.mark.parametrize("shape", [(1, 32), (2, 3, 32), (65, 32)])
def test_dense_products_with_and_without_a_bias(ops, dtype, shape):
    x, bias = random_array(1, *shape, dtype=dtype), random_array(2, 7, dtype=dtype)
    weights = [scaled(3, 7, 32, dtype), scaled(4, 7, 32, dtype), scaled(5, 3, 32, dtype)]
    got = ops.linear(x, weights, [bias, None, None])
    for out, w, addend in zip(got, weights, (bias, None, None), strict=True):
        assert_close(out, product(x, w, addend), rounding(dtype, 8), dtype=dtype)
    assert_close(ops.linear(x, weights[:1])[0], product(x, weights[0]), rounding(dtype, 8), dtype=dtype)


@pytest.mark.parametrize(("bits", "group"), PACKINGS)
def test_packed_products(ops, dtype, bits, group):
    for rows in (1, 2, 9, 65):
        x, w = (
            random_array(rows, rows, 3 * group, dtype=dtype),
            packed(bits, 13, 3 * group, bits, group, dtype),
        )
        w = replace(w, scales=w.scales / 16, biases=w.biases / 16)
        bias = random_array(5, 13, dtype=dtype)
        for addend in (None, bias):
            got = ops.linear(x, [w], [addend])[0]
            assert_close(
                got,
                product(x, w, addend),
                rounding(dtype, 12 if dtype != mx.float32 else 200),
                dtype=dtype,
                what=f"{rows} rows",
            )


def test_matrices_of_one_call_may_be_packed_differently(ops):
    x, weights = (
        random_array(1, 2, 5, 64),
        [packed(2, 6, 64, 4, 32), scaled(3, 5, 64, mx.float32), packed(4, 9, 64, 8)],
    )
    for out, w in zip(ops.linear(x, weights), weights, strict=True):
        assert_close(out, product(x, w), F32)


@pytest.mark.parametrize("shape", [(0, 64), (2, 0, 64)])
def test_a_product_of_no_rows(ops, dtype, shape):
    weights = [packed(1, 6, 64, dtype=dtype), scaled(2, 5, 64, dtype)]
    for out, size in zip(ops.linear(mx.zeros(shape, dtype), weights), (6, 5), strict=True):
        assert (out.shape, out.dtype) == ((*shape[:-1], size), dtype)


@pytest.mark.parametrize("shape", [(1,), (3, 2), (0, 1)])
def test_rows_of_a_table(ops, dtype, shape):
    tokens = mx.array(np.random.default_rng(1).integers(0, 11, shape).astype(np.int32))
    table = scaled(1, 11, 64, dtype)
    assert_close(ops.embedding(tokens, table), as_float64(table)[np.array(tokens)], EXACT, dtype=dtype)
    for bits in BITS:
        w = packed(2, 11, 64, bits, dtype=dtype)
        want = numbers(w)[np.array(tokens)]
        assert_close(ops.embedding(tokens, w), want, rounding(dtype, 8), dtype=dtype, what=f"{bits} bits")


@pytest.mark.parametrize("bits", [None, 4, 8])
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_experts(ops, bits, tokens):
    """40 tokens use experts so often that their rows are sorted."""
    config, weights = experts.MOE, experts.expert_weights(experts.MOE)
    used = weights if bits is None else experts.packed(weights, bits)
    x = random_array(3, tokens, config.hidden_size)
    found = [experts.routed(config, weights["gate.weight"], row) for row in as_float64(x)]
    chosen = mx.array(np.stack([each for each, _ in found]).astype(np.uint32))
    shares = mx.array(np.stack([each for _, each in found]).astype(np.float32))
    matrices = (used[f"switch_mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
    got = ops.expert_mlp(x, chosen, shares, *matrices)
    assert_close(got, experts.feed_forward(config, used, x), F32, dtype=mx.float32)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_experts_keep_the_dtype(ops, dtype):
    config, weights = experts.MOE, experts.in_dtype(experts.expert_weights(experts.MOE), mx.bfloat16)
    x = random_array(3, 5, config.hidden_size, dtype=dtype)
    chosen, shares = mx.array([[n, 3, 7] for n in (0, 1, 2, 4, 5)], mx.uint32), mx.full((5, 3), 1 / 3)
    matrices = [weights[f"switch_mlp.{part}_proj.weight"] for part in ("gate", "up", "down")]
    want = np.zeros((5, config.hidden_size))
    for row, numbers_of in enumerate(np.array(chosen)):
        for n in numbers_of:
            gate, up, down = (experts.wide(w)[n] for w in matrices)
            wide = as_float64(x)[row]
            want[row] += down @ (oracle.silu(gate @ wide) * (up @ wide)) / 3
    got = ops.expert_mlp(x, chosen, shares, *matrices)
    assert_close(got, want, rounding(dtype, 40), dtype=dtype)  # hidden numbers of size four
