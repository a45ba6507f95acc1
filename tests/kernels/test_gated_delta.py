"""The gated delta net against float64, and bit for bit against itself cut, packed and kept in other ways."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.tolerance import as_float64, assert_close, of_kernel
from tests.helpers.toy import random_array

EPS = 1e-6
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


@dataclass
class Net:
    conv: mx.array
    a_log: mx.array
    dt_bias: mx.array
    norm: mx.array
    eps: float


def a_net(shape):
    hk, dk, hv, dv, taps = shape
    channels = 2 * hk * dk + hv * dv
    return Net(
        random_array(1, taps, channels),
        mx.log(mx.abs(random_array(2, hv)) * 4 + 0.1),
        random_array(3, hv),
        random_array(4, dv),
        EPS,
    )


def some_rows(shape, count, dtype=mx.float32, seed=10):
    hk, dk, hv, dv, _ = shape
    widths = (2 * hk * dk + hv * dv, hv * dv, hv, hv)
    rows = [random_array(seed + i, count, width, dtype=dtype) * 2 for i, width in enumerate(widths)]
    mx.eval(rows)
    return rows


def memory(shape, slots, dtype=mx.float32):
    """A slot's conv inputs and matrices, filled with what must never be read."""
    hk, dk, hv, dv, taps = shape
    tails = mx.full((slots, taps - 1, 2 * hk * dk + hv * dv), 7, dtype)
    matrices = mx.full((slots, hv, dk, dv), -7.0)
    mx.eval(tails, matrices)
    return tails, matrices


def cut(rows, first, last):
    return [row[first:last] for row in rows]


def run(k, net, rows, kept, starts, slots, offsets, tails):
    out = k.gated_delta(rows, net, *tails, starts, slots, offsets, kept)
    mx.eval(out)
    return out


def alone(k, net, shape, rows, ends=None):
    """Outputs and memory of one request, its rows cut at `ends`."""
    count = rows[0].shape[0]
    stored, outs, first = memory(shape, 1, rows[0].dtype), [], 0
    for last in (*(ends or ()), count):
        out, *stored = run(
            k, net, cut(rows, first, last), [last - first], [0, last - first], [0], [first], stored
        )
        outs.append(out)
        first = last
    return mx.concatenate(outs), *stored


def silu(x):
    return x / (1 + np.exp(-x))


def oracle(net, shape, rows):
    """Token by token in float64, in the words of the equations."""
    hk, dk, hv, dv, taps = shape
    qkv, z, a, b = (as_float64(row) for row in rows)
    conv, norm = as_float64(net.conv), as_float64(net.norm)
    padded = np.concatenate([np.zeros((taps - 1, qkv.shape[1])), qkv])
    mixed = silu(sum(conv[j] * padded[j : j + len(qkv)] for j in range(taps)))
    q, key, v = np.split(mixed, [hk * dk, 2 * hk * dk], axis=1)
    q, key = (np.repeat(part.reshape(-1, hk, dk), hv // hk, axis=1) for part in (q, key))
    q, key = (part / np.sqrt((part**2).sum(-1, keepdims=True) + 1e-6) for part in (q, key))
    v, z = v.reshape(-1, hv, dv), z.reshape(-1, hv, dv)
    decay = np.exp(-np.exp(as_float64(net.a_log)) * np.log1p(np.exp(a + as_float64(net.dt_bias))))
    beta = 1 / (1 + np.exp(-b))
    state, outs = np.zeros((hv, dk, dv)), []
    for t in range(len(qkv)):
        state = state * decay[t][:, None, None]
        error = v[t] - np.einsum("hkv,hk->hv", state, key[t])
        state = state + np.einsum("hk,hv->hkv", key[t], beta[t][:, None] * error)
        outs.append(np.einsum("hkv,hk->hv", state, q[t] / np.sqrt(dk)))
    o = np.array(outs)
    o = o / np.sqrt((o**2).mean(-1, keepdims=True) + net.eps) * norm * silu(z)
    return o.reshape(len(qkv), -1), padded[len(qkv) :], state


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_equations(k, dtype, shape, length):
    net, rows = a_net(shape), some_rows(shape, length, dtype)
    want, tails, state = oracle(net, shape, rows)
    out, got_tails, got_state = alone(k, net, shape, rows)
    assert_close(out, want, of_kernel(want, dtype), dtype=dtype, what="the outputs")
    assert np.array_equal(as_float64(got_tails[0]), tails), "the last inputs as they were"
    assert_close(got_state[0], state, of_kernel(state, mx.float32), what="the state")


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
    """Three requests in one call, in slots of any order: one new, one in its middle, one decode."""
    net, slots, lengths = a_net(shape), [4, 0, 2], [19, 8, 1]
    all_rows = [some_rows(shape, length + 6, seed=100 * i) for i, length in enumerate(lengths)]
    stored = memory(shape, 5)
    for rows, slot in zip(all_rows[1:], slots[1:], strict=True):
        _, *stored = run(k, net, cut(rows, 0, 6), [6], [0, 6], [slot], [0], stored)
    before = [0, 6, 6]
    packed = [
        mx.concatenate(parts)
        for parts in zip(
            *(cut(rows, at, at + n) for rows, at, n in zip(all_rows, before, lengths, strict=True)),
            strict=True,
        )
    ]
    untouched = [np.array(each[1]) for each in stored]
    out, *stored = run(k, net, packed, lengths, [0, 19, 27, 28], slots, before, stored)
    for i, (rows, at, n, slot) in enumerate(zip(all_rows, before, lengths, slots, strict=True)):
        want, tails, matrices = alone(k, net, shape, cut(rows, 0, at + n), [at] if at else None)
        first = sum(lengths[:i])
        assert same(
            [out[first : first + n], stored[0][slot], stored[1][slot]], [want[at:], tails[0], matrices[0]]
        )
    assert all(np.array_equal(np.array(each[1]), kept) for each, kept in zip(stored, untouched, strict=True))


@pytest.mark.parametrize("kept", [0, 1, 3, 16, 20])
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_rows_that_are_not_kept(k, shape, kept):
    """Drafts: all rows have outputs, and what is remembered is that of the accepted ones."""
    net, rows = a_net(shape), some_rows(shape, 26)
    _, *stored = run(k, net, cut(rows, 0, 6), [6], [0, 6], [0], [0], memory(shape, 1))
    want = [mx.array(each) for each in stored]
    out, *stored = run(k, net, cut(rows, 6, 26), [kept], [0, 20], [0], [6], stored)
    assert same([out], [alone(k, net, shape, rows)[0][6:]])
    if kept:
        _, *want = alone(k, net, shape, cut(rows, 0, 6 + kept))
    assert same(stored, want)


REFUSED = {
    "starts": {"starts": [0, 3]},
    "an empty request": {"starts": [0, 0, 4], "slots": [0, 1], "offsets": [0, 0], "kept": [0, 4]},
    "a slot twice": {"starts": [0, 2, 4], "slots": [1, 1], "offsets": [0, 0], "kept": [2, 2]},
    "a slot that is not there": {"slots": [2]},
    "more kept than there are": {"kept": [5]},
    "no offset": {"offsets": []},
}


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
def test_refusals_of_requests(k, change):
    shape = SHAPES[0]
    asked = {"starts": [0, 4], "slots": [0], "offsets": [0], "kept": [4]} | change
    with pytest.raises(ValueError, match=r"starts|request|slots"):
        k.gated_delta(some_rows(shape, 4), a_net(shape), *memory(shape, 2), **asked)


@pytest.mark.parametrize("part", range(6))
def test_refusals_of_shapes(k, part):
    """Each of the arrays one number too narrow."""
    shape = SHAPES[1]
    arrays = [*some_rows(shape, 4), *memory(shape, 1)]
    arrays[part] = arrays[part][..., :-1]
    with pytest.raises(ValueError, match=r"must be|do not fit"):
        k.gated_delta(arrays[:4], a_net(shape), *arrays[4:], [0, 4], [0], [0], [4])
