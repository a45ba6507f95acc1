"""Day 4.3: a gated delta net between its projections, and what it remembers."""

from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import hybrid_oracle
from tests.helpers.hybrid_layers import CONFIG, HYBRID, SIZES, rule_alone, rule_of
from tests.helpers.tolerance import EXACT, F32_MODEL, as_float64, assert_close
from tests.helpers.toy import random_array

from tiny_llm_lab.types import UserError

# The task of each test that names no other.
pytestmark = pytest.mark.task("4.3.1")

# Between the projections


def rows_of(seed, length, dtype=mx.float32):
    """The inputs of a rule side by side [T, W], and cut into qkv, z, a and b."""
    weights, parts = rule_alone()
    x = random_array(seed, length, len(weights["in_proj_a.weight"][0])).astype(dtype)
    return weights, x, [x[:, part] for part in parts]


def fresh():
    return mx.zeros(SIZES.tail_shape), mx.zeros(SIZES.state_shape)


def assert_same_state(got, want, what="the state"):
    assert_close(got[0], want[0], EXACT, legend="[K - 1, C]", what=f"{what}: inputs of the convolution")
    assert_close(got[1], want[1], EXACT, legend="[Hv, Dk, Dv]", what=f"{what}: matrices")


@pytest.mark.parametrize("length", [1, 2, 40])
def test_the_rule_agrees_with_float64(llm, length):
    weights, x, rows = rows_of(1, length)
    out, after = rule_of(llm, weights)(rows, [fresh()], [0, length])
    want = hybrid_oracle.delta_net(CONFIG, HYBRID, weights, as_float64(x)[None])[0]
    assert_close(out, want, F32_MODEL, legend="[T, Hv Dv]", dtype=mx.float32)
    assert [part.shape for part in after[0]] == [SIZES.tail_shape, SIZES.state_shape]


def test_the_tail_is_the_last_inputs_before_the_convolution(llm):
    weights, _, rows = rows_of(2, 5)
    rule = rule_of(llm, weights)
    _, (after,) = rule(rows, [fresh()], [0, 5])
    assert_close(after[0], rows[0][2:], EXACT, legend="[K - 1, C]")
    _, ((tail, _),) = rule([part[:1] for part in rows], [after], [0, 1])
    want = mx.concatenate([rows[0][3:], rows[0][:1]])
    assert_close(tail, want, EXACT, legend="[K - 1, C]", what="the tail after one token more")


@pytest.mark.parametrize("cut", [1, 3, 16])
def test_a_cut_changes_no_bit(llm, cut):
    weights, _, rows = rows_of(3, 17)
    rule = rule_of(llm, weights)
    whole, (last,) = rule(rows, [fresh()], [0, 17])
    state, outs = fresh(), []
    for start, end in pairwise([0, cut, 17]):
        out, (state,) = rule([part[start:end] for part in rows], [state], [0, end - start])
        outs.append(out)
    assert_close(mx.concatenate(outs), whole, EXACT, legend="[T, Hv Dv]")
    assert_same_state(state, last)


def test_packed_sequences_do_not_meet(llm):
    """Three sequences of 4, 1 and 7 tokens, of which two go on from other states."""
    weights, _, rows = rows_of(4, 12)
    rule, starts = rule_of(llm, weights), [0, 4, 5, 12]
    _, (earlier, later) = rule(rows, [fresh(), fresh()], [0, 9, 12])
    before = [earlier, fresh(), later]
    out, after = rule(rows, before, starts)
    for row, (start, end) in enumerate(pairwise(starts)):
        alone, (want,) = rule([part[start:end] for part in rows], [before[row]], [0, end - start])
        assert_close(out[start:end], alone, EXACT, legend="[T, Hv Dv]", what=f"sequence {row}")
        assert_same_state(after[row], want, f"the state of sequence {row}")


def test_a_state_is_a_value_and_never_changes(llm):
    weights, _, rows = rows_of(5, 6)
    rule = rule_of(llm, weights)
    _, (state,) = rule(rows, [fresh()], [0, 6])
    kept = [np.array(part) for part in state]
    for _ in range(2):
        _, after = rule(rows, [state], [0, 6])
        mx.eval(after)
    assert_same_state(state, kept, "the old state")


def test_a_state_keeps_no_memory_but_its_own(llm):
    weights, _, rows = rows_of(7, 300)
    _, state = rule_of(llm, weights)(rows, [fresh()], [0, 300])
    mx.eval(state)
    before, size = mx.get_active_memory(), sum(part.nbytes for part in state[0])
    del state
    freed = before - mx.get_active_memory()
    says = f"a state of {size} bytes keeps {freed}: a slice keeps the whole array that it is a part of"
    assert freed < size + 2**14, says


def test_rows_of_16_bits_are_computed_in_float32(llm):
    weights, x, rows = rows_of(6, 12, mx.bfloat16)
    out, after = rule_of(llm, weights)(rows, [fresh()], [0, 12])
    want = hybrid_oracle.delta_net(CONFIG, HYBRID, weights, as_float64(x)[None])[0]
    assert_close(out, want, F32_MODEL, legend="[T, Hv Dv]", dtype=mx.float32)
    assert {part.dtype for part in after[0]} == {mx.float32}


# What a layer remembers


def counting(rows, states, starts):
    """A rule whose outputs are its inputs, and whose states add their sequence's inputs up."""
    (x,) = rows
    spans = zip(pairwise(starts), states, strict=True)
    return x, [(tail + 1, matrix + mx.sum(x[start:end])) for (start, end), (tail, matrix) in spans]


def sums(states):
    return [float(matrix[0, 0, 0]) for _, matrix in states]


@pytest.mark.task("4.3.2")
def test_a_new_state_has_seen_nothing(llm):
    tail, matrices = llm.no_state(SIZES)
    assert_close(tail, np.zeros(SIZES.tail_shape), EXACT, legend="[K - 1, C]", dtype=mx.float32)
    assert_close(matrices, np.zeros(SIZES.state_shape), EXACT, legend="[Hv, Dk, Dv]", dtype=mx.float32)
    cache = llm.SequenceState(SIZES)
    assert (cache.offset, cache.nbytes, cache.offsets(3)) == (0, 0, [0, 0, 0])


@pytest.mark.task("4.3.2")
def test_a_sequence_state_goes_on_from_what_it_kept(llm):
    cache = llm.SequenceState(SIZES)
    out = cache.update(counting, [mx.arange(6.0)], 2, 3)
    assert_close(out, np.arange(6.0), EXACT, legend="[B * L]")
    assert (cache.offset, sums(cache.states)) == (3, [3.0, 12.0]), "rows of three tokens each, from zeros on"
    before = cache.states
    cache.update(counting, [mx.array([10.0, 20.0])], 2, 1)
    assert (cache.offset, cache.offsets(2), sums(cache.states)) == (4, [4, 4], [13.0, 32.0])
    assert sums(before) == [3.0, 12.0], "whoever keeps the states keeps that moment"
    assert cache.nbytes == 2 * 4 * (np.prod(SIZES.tail_shape) + np.prod(SIZES.state_shape))
    with pytest.raises(ValueError):
        cache.update(counting, [mx.arange(3.0)], 3, 1)
    cache.materialize()
    cache.release()
    assert (cache.offset, cache.nbytes) == (0, 0)
    cache.update(counting, [mx.array([5.0])], 1, 1)
    assert sums(cache.states) == [5.0], "after a release it starts from zeros, with any number of rows"


@pytest.mark.task("4.3.2")
def test_a_sequence_state_forgets_nothing_or_all(llm):
    cache = llm.SequenceState(SIZES)
    cache.rewind(0)
    cache.update(counting, [mx.arange(4.0)], 1, 4)
    cache.rewind(0)
    assert (cache.offset, sums(cache.states)) == (4, [6.0])
    with pytest.raises(UserError, match="cannot be cut back"):
        cache.rewind(2)
    for wrong in (-1, 5):
        with pytest.raises(ValueError, match="cannot rewind"):
            cache.rewind(wrong)
    cache.rewind(4)
    assert (cache.offset, cache.nbytes) == (0, 0)


def prefilled(llm, length, value):
    cache = llm.SequenceState(SIZES)
    cache.update(counting, [mx.full((length,), value)], 1, length)
    return cache


@pytest.mark.task("4.3.2")
def test_requests_join_a_batch_of_states_and_leave_it(llm):
    batch = llm.BatchingState(3)
    batch.reserve(100)
    assert (batch.offset, batch.nbytes) == ([], 0)
    rows = [
        batch.add_request(prefilled(llm, length, value))
        for length, value in ((2, 1.0), (3, 10.0), (1, 100.0))
    ]
    assert (rows, batch.offset, sums(batch.states)) == ([0, 1, 2], [2, 3, 1], [2.0, 30.0, 100.0])
    earlier = batch.offsets(3)
    batch.update(counting, [mx.array([1.0, 2.0, 3.0])], 3, 1)
    assert (batch.offset, sums(batch.states)) == ([3, 4, 2], [3.0, 32.0, 103.0])
    assert earlier == [2, 3, 1], "offset becomes a new list"
    batch.remove_request(0)  # the last row moves into its place
    assert (batch.offset, sums(batch.states)) == ([2, 4], [103.0, 32.0])
    batch.remove_request(1)
    assert (batch.offset, sums(batch.states)) == ([2], [103.0])
    assert batch.nbytes == 4 * (np.prod(SIZES.tail_shape) + np.prod(SIZES.state_shape))
    batch.release()
    assert (batch.offset, batch.nbytes) == ([], 0)


@pytest.mark.task("4.3.2")
def test_a_batch_of_states_refuses_what_it_cannot_hold(llm):
    batch = llm.BatchingState(1)
    with pytest.raises(ValueError):
        batch.add_request(llm.SequenceState(SIZES))
    with pytest.raises(ValueError):
        batch.remove_request(0)
    batch.add_request(prefilled(llm, 2, 1.0))
    with pytest.raises(ValueError):
        batch.add_request(prefilled(llm, 2, 1.0))
    with pytest.raises(ValueError):
        batch.update(counting, [mx.arange(2.0)], 2, 1)
