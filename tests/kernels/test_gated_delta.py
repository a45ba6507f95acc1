"""The gated delta net against float64, and bit for bit against itself cut, packed and kept in other ways."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.delta_nets import EPS, Net, a_net, cut, nothing, oracle, some_rows
from tests.helpers.tolerance import as_float64, assert_close, of_kernel

# Hk, Dk, Hv, Dv, K: one key head for one, two and three value heads; odd sizes; a real model's head.
SHAPES = [
    (2, 16, 2, 16, 4),
    (2, 8, 4, 24, 4),
    (1, 7, 3, 33, 4),
    (3, 40, 3, 5, 2),
    (1, 128, 2, 128, 4),
    (1, 1, 1, 1, 1),
]
LENGTHS = (1, 5, 16, 17, 40)


def alone(k, net, shape, rows, ends=()):
    """Outputs and state of one request, its rows cut at `ends`."""
    count = rows[0].shape[0]
    state, outs, first = nothing(shape, rows[0].dtype), [], 0
    for last in (*ends, count):
        out, (state,) = k.gated_delta(cut(rows, first, last), net, [state], [0, last - first])
        outs.append(out)
        first = last
    mx.eval(outs, state)
    return mx.concatenate(outs), *state


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_equations(k, dtype, shape, length):
    net, rows = a_net(shape), some_rows(shape, length, dtype)
    want, tail, state = oracle(net, shape, rows)
    out, got_tail, got_state = alone(k, net, shape, rows)
    assert_close(out, want, of_kernel(want, dtype), dtype=dtype, what="the outputs")
    assert np.array_equal(as_float64(got_tail), tail), "the last inputs as they were"
    assert_close(got_state, state, of_kernel(state, mx.float32), what="the state")


def same(found, want):
    return all(mx.array_equal(a, b).item() for a, b in zip(found, want, strict=True))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_cut_changes_no_bit(k, dtype, shape):
    net, rows = a_net(shape), some_rows(shape, 40, dtype)
    want = alone(k, net, shape, rows)
    for size in (1, 2, 7, 16, 33):
        assert same(alone(k, net, shape, rows, range(size, 40, size)), want), f"chunks of {size}"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_company_changes_no_bit(k, shape):
    """Three requests in one call: one new, one in its middle, one decode."""
    net, before, lengths = a_net(shape), [0, 6, 6], [19, 8, 1]
    all_rows = [
        some_rows(shape, at + n, seed=100 * i) for i, (at, n) in enumerate(zip(before, lengths, strict=True))
    ]
    states = [
        alone(k, net, shape, cut(rows, 0, at))[1:] if at else nothing(shape)
        for rows, at in zip(all_rows, before, strict=True)
    ]
    parts = [cut(rows, at, None) for rows, at in zip(all_rows, before, strict=True)]
    packed = [mx.concatenate(part) for part in zip(*parts, strict=True)]
    out, after = k.gated_delta(packed, net, states, [0, 19, 27, 28])
    for i, (rows, at, n) in enumerate(zip(all_rows, before, lengths, strict=True)):
        want, *state = alone(k, net, shape, rows)
        first = sum(lengths[:i])
        assert same([out[first : first + n], *after[i]], [want[at:], *state])


@pytest.mark.parametrize("num_new", [1, 2, 17])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_state_that_somebody_keeps_stays_as_it_is(k, shape, num_new):
    """A snapshot is a reference: the next step reads it, and writes into other memory."""
    net, rows = a_net(shape), some_rows(shape, 6 + num_new)
    _, *kept = alone(k, net, shape, cut(rows, 0, 6))
    copies = [np.array(each) for each in kept]
    want = alone(k, net, shape, rows, [6])
    for _ in range(2):
        out, [after] = k.gated_delta(cut(rows, 6, None), net, [tuple(kept)], [0, num_new])
        mx.eval(out, after)
        assert all(np.array_equal(np.array(each), copy) for each, copy in zip(kept, copies, strict=True))
        assert same([out, *after], [want[0][6:], *want[1:]])


@pytest.mark.parametrize("starts", [[0, 3], [0, 0, 4], [0, 4, 4], [1, 4], [0, 4], []], ids=str)
def test_starts_that_do_not_fit(k, starts):
    shape = SHAPES[0]
    with pytest.raises(ValueError, match=r"starts|request"):
        k.gated_delta(some_rows(shape, 4), a_net(shape), [nothing(shape)] * 2, starts)


@pytest.mark.parametrize("part", range(10))
def test_shapes_that_do_not_fit(k, part):
    """Each of the arrays one number too narrow."""
    shape = SHAPES[1]
    net = a_net(shape)
    arrays = [*some_rows(shape, 4), *nothing(shape), net.conv, net.a_log, net.dt_bias, net.norm]
    arrays[part] = arrays[part][..., :-1]
    with pytest.raises(ValueError, match=r"must be|do not fit"):
        k.gated_delta(arrays[:4], Net(*arrays[6:], EPS), [tuple(arrays[4:6])], [0, 4])
