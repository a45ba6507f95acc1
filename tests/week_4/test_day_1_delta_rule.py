"""Day 4.1: a memory that is read, corrected and fades."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import hybrid_oracle, oracle
from tests.helpers.tolerance import EXACT, F32, as_float64, assert_close
from tests.helpers.toy import random_array

# The task of each test that names no other.
pytestmark = pytest.mark.task("4.1.3")

DTYPES = [mx.float16, mx.bfloat16]

# The convolution


@pytest.mark.task("4.1.1")
def test_the_convolution_of_five_tokens(llm):
    # Sums of 20 and more, where silu changes nothing that float32 could hold.
    inputs = mx.array([[[1.0], [2.0], [3.0], [4.0], [5.0]]])
    weight = mx.array([[1000.0, 100.0, 10.0, 1.0]]) * 20
    got = llm.causal_conv(inputs, mx.zeros((1, 3, 1)), weight)
    want = [[[20.0], [240.0], [2460.0], [24680.0], [46900.0]]]
    assert_close(got, want, F32, legend="[B, L, C]", dtype=mx.float32)


@pytest.mark.task("4.1.1")
@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("taps", [2, 4])
def test_the_convolution_sees_its_taps_and_no_more(llm, length, taps):
    inputs, tail, weight = (
        random_array(0, 2, length, 6),
        random_array(1, 2, taps - 1, 6),
        random_array(2, 6, taps),
    )
    both = np.concatenate([as_float64(tail), as_float64(inputs)], axis=1)
    want = sum(both[:, tap : tap + length] * as_float64(weight)[:, tap] for tap in range(taps))
    assert_close(llm.causal_conv(inputs, tail, weight), oracle.silu(want), F32, legend="[B, L, C]")


@pytest.mark.task("4.1.1")
@pytest.mark.parametrize("cut", [1, 2, 3, 5, 8])
def test_the_convolution_is_the_same_to_the_bit_wherever_it_is_cut(llm, cut):
    inputs, weight, tail = random_array(3, 2, 9, 16), random_array(4, 16, 4), random_array(5, 2, 3, 16)
    whole = llm.causal_conv(inputs, tail, weight)
    seen = mx.concatenate([tail, inputs], axis=1)
    parts = [(seen[:, :3], inputs[:, :cut]), (seen[:, cut : cut + 3], inputs[:, cut:])]
    got = mx.concatenate([llm.causal_conv(part, before, weight) for before, part in parts], axis=1)
    assert_close(got, whole, EXACT, legend="[B, L, C]")


@pytest.mark.task("4.1.1")
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_convolution_is_computed_in_float32(llm, dtype):
    inputs, weight = (
        random_array(seed, *shape, dtype=dtype) for seed, shape in ((6, (1, 9, 8)), (7, (8, 4)))
    )
    both = np.pad(as_float64(inputs), ((0, 0), (3, 0), (0, 0)))
    want = sum(both[:, tap : tap + 9] * as_float64(weight)[:, tap] for tap in range(4))
    assert_close(
        llm.causal_conv(inputs, mx.zeros((1, 3, 8)), weight), oracle.silu(want), F32, dtype=mx.float32
    )


# Unit keys, and the decay


@pytest.mark.task("4.1.2")
def test_vectors_of_length_one(llm):
    got = llm.l2_normalised(mx.array([[3.0, 4.0], [0.0, 0.0], [0.0, -0.5]]))
    assert_close(got, [[0.6, 0.8], [0.0, 0.0], [0.0, -1.0]], F32, legend="[..., D]", dtype=mx.float32)
    # The eps is added to the sum of squares: here it is as large as the sum.
    assert_close(llm.l2_normalised(mx.array([1e-3, 0.0])), [0.5**0.5, 0.0], F32)


@pytest.mark.task("4.1.2")
@pytest.mark.parametrize("dtype", DTYPES)
def test_lengths_are_summed_in_float32(llm, dtype):
    x = random_array(8, 2, 3, 256, dtype=dtype) * 30
    wide = as_float64(x)
    want = wide / np.sqrt((wide**2).sum(axis=-1, keepdims=True) + 1e-6)
    assert_close(llm.l2_normalised(x), want, F32, legend="[..., D]", dtype=mx.float32)


@pytest.mark.task("4.1.2")
def test_the_decay_of_two_heads(llm):
    # softplus(0) is ln 2: a head of rate 1 keeps a half, one of rate 2 a quarter; dt_bias shifts a.
    a = mx.array([[0.0, 0.0], [-1.0, 3.0]])
    a_log, dt_bias = mx.array([0.0, np.log(2.0)]), mx.array([0.0, 0.0])
    kept = [[0.5, 0.25], [1 / (1 + np.exp(-1.0)), 1 / (1 + np.exp(3.0)) ** 2]]
    assert_close(llm.decay_of(a, a_log, dt_bias), kept, F32, legend="[..., Hv]", dtype=mx.float32)
    shifted = llm.decay_of(a - mx.array([5.0, -2.0]), a_log, mx.array([5.0, -2.0]))
    assert_close(shifted, kept, F32, legend="[..., Hv]")


@pytest.mark.task("4.1.2")
@pytest.mark.parametrize("dtype", [mx.float32, *DTYPES])
def test_the_decay_agrees_with_float64(llm, dtype):
    a = (random_array(9, 2, 5, 4) * 9).astype(dtype)
    a_log, dt_bias = random_array(10, 4), random_array(11, 4)
    step = np.logaddexp(0, as_float64(a) + as_float64(dt_bias))
    want = np.exp(-np.exp(as_float64(a_log)) * step)
    assert_close(llm.decay_of(a, a_log, dt_bias), want, F32, legend="[..., Hv]", dtype=mx.float32)


@pytest.mark.task("4.1.2")
def test_a_decay_is_a_number_for_any_input(llm):
    got = llm.decay_of(mx.array([1000.0, -1000.0]), mx.zeros(2), mx.zeros(2))
    assert got.tolist() == [0.0, 1.0], "a large input forgets all, a small one nothing"
    slow = llm.decay_of(mx.array([100.0]), mx.array([-5.0]), mx.zeros(1))
    assert_close(slow, np.exp(-100 * np.exp([-5.0])), F32, what="softplus of 100, whose exp is no float32")


# The recurrence


def inputs_of(seed, batch, length, heads=3, dk=16, dv=24):
    q, k, v = (random_array(seed + i, batch, length, heads, dim) for i, dim in enumerate((dk, dk, dv)))
    k = k / mx.sqrt(mx.sum(k * k, axis=-1, keepdims=True))
    decay, beta = (
        mx.sigmoid(shift + random_array(seed + i, batch, length, heads)) for i, shift in ((3, 2), (4, 0))
    )
    return (q, k, v), decay, beta


def test_three_tokens_by_hand(llm):
    """The chapter's table: a value is stored, another key changes nothing, the first key is corrected."""
    keys = mx.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])[None, :, None]
    values = mx.array([[4.0, 2.0], [1.0, 1.0], [6.0, 0.0]])[None, :, None]
    queries = mx.array([[1.0, 0.0], [1.0, 1.0], [1.0, 1.0]])[None, :, None]
    decay, beta = mx.array([[[1.0], [0.5], [1.0]]]), mx.array([[[1.0], [1.0], [0.5]]])
    out, state = llm.gated_delta_rule((queries, keys, values), decay, beta, mx.zeros((1, 1, 2, 2)), 3)
    assert_close(state, [[[[4.0, 0.5], [1.0, 1.0]]]], F32, legend="[B, Hv, Dk, Dv]", what="the state")
    assert_close(
        out[0, :, 0], [[4.0, 2.0], [3.0, 2.0], [5.0, 1.5]], F32, legend="[L, Dv]", what="the outputs"
    )


@pytest.mark.parametrize("length", [1, 2, 65])
def test_the_recurrence_is_that_of_float64(llm, length):
    qkv, decay, beta = inputs_of(20, 2, length)
    out, last = llm.gated_delta_rule(qkv, decay, beta, mx.zeros((2, 3, 16, 24)), length)
    want, want_last = hybrid_oracle.delta_rule(*(as_float64(each) for each in (*qkv, decay, beta)))
    assert_close(out, want, F32, legend="[B, n, Hv, Dv]", dtype=mx.float32, what="the outputs")
    assert_close(last, want_last, F32, legend="[B, Hv, Dk, Dv]", dtype=mx.float32, what="the state")


@pytest.mark.parametrize("num_outputs", [0, 1, 5])
def test_only_the_wanted_outputs_are_returned(llm, num_outputs):
    qkv, decay, beta = inputs_of(40, 1, 5)
    state = random_array(45, 1, 3, 16, 24)
    given = np.array(state, copy=True)
    every, last = llm.gated_delta_rule(qkv, decay, beta, state, 5)
    some, same = llm.gated_delta_rule(qkv, decay, beta, state, num_outputs)
    assert_close(state, given, EXACT, what="the state that you were given: a call returns a new one")
    assert_close(some, every[:, 5 - num_outputs :], EXACT, legend="[B, n, Hv, Dv]", what="the outputs")
    assert_close(same, last, EXACT, what="the state, which every token changes")


@pytest.mark.parametrize("cut", [1, 7, 16])
def test_the_recurrence_is_the_same_to_the_bit_wherever_it_is_cut(llm, cut):
    qkv, decay, beta = inputs_of(50, 2, 17)
    state = random_array(55, 2, 3, 16, 24)
    whole, last = llm.gated_delta_rule(qkv, decay, beta, state, 17)
    outs = []
    for start, end in ((0, cut), (cut, 17)):
        part = [each[:, start:end] for each in (*qkv, decay, beta)]
        out, state = llm.gated_delta_rule(tuple(part[:3]), *part[3:], state, end - start)
        outs.append(out)
    assert_close(mx.concatenate(outs, axis=1), whole, EXACT, legend="[B, n, Hv, Dv]", what="the outputs")
    assert_close(state, last, EXACT, what="the state")
