"""The gated delta rule against float64, and to the bit wherever a prompt is cut."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import hybrid_oracle, oracle
from tests.helpers.tolerance import F32, as_float64, assert_close

from tiny_llm_lab.types import DeltaNetSizes
from tiny_llm_ref.layers.delta_rule import causal_conv, decay_of, gated_delta_rule, l2_normalised

SIZES = DeltaNetSizes(num_key_heads=2, num_value_heads=4, key_head_dim=16, value_head_dim=24, conv_kernel=4)
E = 32


def drawn(seed: int, *shape: int) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def inputs_of(batch: int, length: int, seed: int = 0) -> tuple[mx.array, ...]:
    heads, dk, dv = SIZES.state_shape
    q, k = (l2_normalised(drawn(seed + i, batch, length, heads, dk)) for i in (0, 1))
    v = drawn(seed + 2, batch, length, heads, dv)
    decay = mx.sigmoid(2 + drawn(seed + 3, batch, length, heads))
    return q, k, v, decay, mx.sigmoid(drawn(seed + 4, batch, length, heads))


@pytest.mark.parametrize("length", [1, 2, 65, 300])
def test_the_recurrence_is_that_of_float64(length: int) -> None:
    q, k, v, decay, beta = inputs_of(2, length)
    state = mx.zeros((2, *SIZES.state_shape))
    out, last = gated_delta_rule((q, k, v), decay, beta, state, length)
    want, want_last = hybrid_oracle.delta_rule(*(as_float64(each) for each in (q, k, v, decay, beta)))
    assert_close(out, want, F32, legend="[B, L, Hv, Dv]", dtype=mx.float32)
    assert_close(last, want_last, F32, legend="[B, Hv, Dk, Dv]", dtype=mx.float32)


def test_a_value_that_was_stored_is_read_and_corrected() -> None:
    """With beta 1 and no decay: what a key of length 1 answers is the last value stored under it."""
    key = l2_normalised(drawn(0, 1, 1, 1, 8))
    keys, first, second = mx.repeat(key, 2, axis=1), drawn(1, 1, 1, 1, 5), drawn(2, 1, 1, 1, 5)
    ones = mx.ones((1, 2, 1))
    values = mx.concatenate([first, second], axis=1)
    out, _ = gated_delta_rule((keys, keys, values), ones, ones, mx.zeros((1, 1, 8, 5)), 2)
    assert_close(out, values, F32)


@pytest.mark.parametrize("num_outputs", [0, 1, 5])
def test_only_the_wanted_outputs_are_computed(num_outputs: int) -> None:
    q, k, v, decay, beta = inputs_of(1, 5)
    state = drawn(9, 1, *SIZES.state_shape)
    every, last = gated_delta_rule((q, k, v), decay, beta, state, 5)
    some, same = gated_delta_rule((q, k, v), decay, beta, state, num_outputs)
    assert some.shape == (1, num_outputs, 4, 24)
    assert mx.array_equal(some, every[:, 5 - num_outputs :]) and mx.array_equal(same, last)


def test_the_convolution_sees_four_tokens() -> None:
    inputs, tail, weight = drawn(0, 2, 9, 6), drawn(1, 2, 3, 6), drawn(2, 6, 4)
    both = np.concatenate([as_float64(tail), as_float64(inputs)], axis=1)
    want = sum(both[:, tap : tap + 9] * as_float64(weight)[:, tap] for tap in range(4))
    assert_close(causal_conv(inputs, tail, weight), oracle.silu(want), F32)


def test_the_decay() -> None:
    a, a_log, dt_bias = drawn(0, 2, 3, 4) * 9, drawn(1, 4), drawn(2, 4)
    step = np.logaddexp(0, as_float64(a) + as_float64(dt_bias))
    assert_close(decay_of(a, a_log, dt_bias), np.exp(-np.exp(as_float64(a_log)) * step), F32)
    assert decay_of(mx.array([1000.0, -1000.0]), mx.zeros(2), mx.zeros(2)).tolist() == [0.0, 1.0]
