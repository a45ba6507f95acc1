"""The gated delta rule against float64, and to the bit wherever a prompt is cut."""

from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import hybrid_oracle, oracle
from tests.helpers.tolerance import F32, as_float64, assert_close

from tiny_llm_lab.types import DeltaNetSizes, HybridConfig, ModelConfig, UserError, Wanted
from tiny_llm_ref.cache.state import BatchingState, SequenceState
from tiny_llm_ref.layers.delta_rule import causal_conv, decay_of, gated_delta_rule, l2_normalised
from tiny_llm_ref.models.hybrid import GatedDeltaNet

SIZES = DeltaNetSizes(num_key_heads=2, num_value_heads=4, key_head_dim=16, value_head_dim=24, conv_kernel=4)
E = 32


def drawn(seed: int, *shape: int) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def whole_numbers(seed: int, *shape: int) -> mx.array:
    """Small enough that a sum of products is exact in float32, in whatever order it is made."""
    return mx.array(np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32))


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


def delta_net() -> GatedDeltaNet:
    config = ModelConfig(
        "qwen3_5", 320, E, 1, 2, 1, 32, 64, 1e-6, 1e7, 512, True, False, True,
        hybrid=HybridConfig(("linear_attention",), SIZES, 8),
    )  # fmt: skip
    names = {"qkv": SIZES.conv_dim, "z": SIZES.value_dim, "b": 4, "a": 4}
    weights = {
        f"in_proj_{name}.weight": whole_numbers(i, rows, E) / 16
        for i, (name, rows) in enumerate(names.items())
    }
    weights |= {"conv1d.weight": drawn(5, SIZES.conv_dim, 4), "dt_bias": drawn(6, 4), "A_log": drawn(7, 4)}
    weights |= {"norm.weight": drawn(8, 24), "out_proj.weight": whole_numbers(9, E, SIZES.value_dim) / 16}
    return GatedDeltaNet(config, weights)


def run(mixer: GatedDeltaNet, x: mx.array, cache: SequenceState, ends: list[int]) -> mx.array:
    parts = [mixer(x[:, start:end], cache.offsets(len(x)), cache) for start, end in pairwise([0, *ends])]
    cache.materialize()
    return mx.concatenate(parts, axis=1)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_where_a_prompt_is_cut_changes_no_bit_of_a_state(size: int) -> None:
    """Of the projections in front every sum is exact, so that nothing but the layer itself is compared."""
    mixer, x = delta_net(), whole_numbers(20, 2, 130, E)
    whole, cut = SequenceState(SIZES), SequenceState(SIZES)
    run(mixer, x, whole, [130])
    run(mixer, x, cut, [*range(size, 130, size), 130])
    assert cut.offset == whole.offset == 130
    for row, want in zip(cut.states, whole.states, strict=True):
        assert all(a.dtype == mx.float32 and mx.array_equal(a, b) for a, b in zip(row, want, strict=True))
        assert float(mx.abs(want[1]).max()) > 0.01


def test_a_layer_computes_the_last_outputs_alone_from_the_same_state() -> None:
    mixer, x = delta_net(), whole_numbers(21, 1, 20, E)
    all_of, last = SequenceState(SIZES), SequenceState(SIZES)
    every = mixer(x, [0], all_of)
    for n in (3, 0, 99):
        last.release()
        some = mixer(x, [0], last, wanted=Wanted(last=n))
        assert some.shape == (1, min(n, 20), E)
        assert_close(some, every[:, 20 - some.shape[1] :], F32)
        assert mx.array_equal(last.states[0][1], all_of.states[0][1])


def test_a_row_of_a_batch_has_the_state_of_the_request_alone() -> None:
    """To the bit: three rows of other lengths, then a step together, then one leaves and two go on."""
    mixer, lengths = delta_net(), [3, 1, 9]
    prompts = [whole_numbers(30 + i, 1, length, E) for i, length in enumerate(lengths)]
    steps = [whole_numbers(40 + i, 3, 1, E) for i in range(2)]
    alone, batch = [SequenceState(SIZES) for _ in lengths], BatchingState(3)
    for i, (x, cache) in enumerate(zip(prompts, alone, strict=True)):
        mixer(x, [0], cache)
        assert batch.add_request(cache) == i
    mixer(steps[0], batch.offsets(3), batch)
    batch.remove_request(0)  # the last row moves into its place
    mixer(steps[1][mx.array([2, 1])], batch.offsets(2), batch)
    assert batch.offset == [11, 3]
    for row, i in enumerate((2, 1)):
        for step in steps:
            mixer(step[i : i + 1], [0], alone[i])
        for got, want in zip(batch.states[row], alone[i].states[0], strict=True):
            assert mx.array_equal(got, want)


def test_a_state_forgets_all_tokens_or_none() -> None:
    cache = SequenceState(SIZES)
    cache.rewind(0)
    delta_net()(whole_numbers(0, 1, 5, E), [0], cache)
    assert cache.nbytes == 4 * (4 * 16 * 24 + 3 * SIZES.conv_dim)
    cache.rewind(0)
    assert cache.offsets(1) == [5]
    with pytest.raises(UserError, match="cannot be cut back"):
        cache.rewind(2)
    cache.rewind(5)
    assert (cache.offset, cache.nbytes) == (0, 0)
    with pytest.raises(ValueError, match="rows"):
        delta_net()(whole_numbers(0, 1, 1, E), [0], BatchingState(2))


def test_a_batch_of_states_has_as_many_rows_as_it_may() -> None:
    cache, batch = SequenceState(SIZES), BatchingState(1)
    with pytest.raises(ValueError, match="empty"):
        batch.add_request(cache)
    delta_net()(whole_numbers(0, 1, 5, E), [0], cache)
    batch.add_request(cache)
    with pytest.raises(ValueError, match="all 1 rows are taken"):
        batch.add_request(cache)
    with pytest.raises(ValueError, match="row 1 is not among"):
        batch.remove_request(1)
    batch.remove_request(0)
    assert (batch.offset, batch.nbytes) == ([], 0)
    batch.add_request(cache)
    batch.release()
    assert batch.offset == []
