"""The given Metal kernel for decodes of a gated delta net: emulated, and on a Mac once more on its GPU."""

import random

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import metal_emulator
from tests.helpers.delta_nets import a_net, before_last, cut, nothing, oracle, some_rows
from tests.helpers.tolerance import F32, as_float64, assert_close, rounding

from tiny_llm_lab.runtime.native.device.delta_checks import in_float64
from tiny_llm_lab.runtime.native.device.delta_decode import delta_decode
from tiny_llm_lab.types import UserError

# Hk, Dk, Hv, Dv, K: a real model's heads, sizes that no number of lanes or simdgroups divides, and the least.
SHAPES = [
    (1, 128, 2, 128, 4),
    (2, 64, 4, 96, 4),
    (2, 33, 6, 65, 3),
    (3, 40, 3, 5, 2),
    (1, 7, 3, 127, 4),
    (1, 1, 1, 1, 2),
]


@pytest.fixture(params=metal_emulator.PLACES, autouse=True)
def place(request, monkeypatch):
    metal_emulator.install(monkeypatch, request.param)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_equals_float64(shape, dtype):
    """Requests at their first token and later, in one launch; every number is written, and no other."""
    net, lengths = a_net(shape), [1, *random.Random(str(shape)).sample(range(2, 12), 3)]
    every = [some_rows(shape, length, dtype, 100 * i) for i, length in enumerate(lengths)]
    states = [before_last(net, shape, rows) for rows in every]
    packed = [mx.concatenate(part) for part in zip(*(cut(rows, -1, None) for rows in every), strict=True)]
    copies = [np.array(part) for state in states for part in state]
    out, after = delta_decode(packed, net, states, range(len(every) + 1))
    for i, rows in enumerate(every):
        want, tail, state = oracle(net, shape, rows)
        allowed = F32 if dtype == mx.float32 else rounding(dtype, 1)
        assert_close(out[i], want[-1], allowed, legend="[Hv Dv]", dtype=dtype, what=f"request {i}")
        assert np.array_equal(as_float64(after[i][0]), tail), "the last inputs as they were"
        assert_close(after[i][1], state, F32, legend="[Hv, Dk, Dv]", dtype=mx.float32)
    kept = [part for state in states for part in state]
    assert all(np.array_equal(np.array(a), b) for a, b in zip(kept, copies, strict=True)), "they are values"


@pytest.mark.parametrize("bias", [-100.0, -17.0, 17.0, 100.0])
def test_gates_far_from_zero(bias):
    """A decay of 1 - 4e-8 a token and one of 0 alike: log(1 + e^x) keeps its digits at both ends."""
    shape = SHAPES[3]
    net, row = a_net(shape), some_rows(shape, 1)
    net.dt_bias, net.a_log = net.dt_bias * 0 + bias, net.a_log * 0 + 12.0
    row[2], row[3] = row[2] * 0, row[3] * 9
    states = [(nothing(shape)[0], mx.ones((shape[2], shape[1], shape[3])))]
    _, ((_, got),) = delta_decode(row, net, states, [0, 1])
    ((_, _, want),) = in_float64(row, net, states[0])
    assert_close(got, want, F32)


REFUSED = [((1, 8, 1, 8, 1), 1), ((1, 129, 1, 8, 4), 1), ((1, 8, 1, 129, 4), 1), ((1, 8, 1, 8, 4), 2)]


@pytest.mark.parametrize(("shape", "rows"), REFUSED, ids=str)
def test_what_it_cannot_take_is_refused(shape, rows):
    net, inputs, states = a_net(shape), some_rows(shape, rows), [nothing(shape)]
    with pytest.raises(UserError, match=f"cannot take {rows} rows of 1"):
        delta_decode(inputs, net, states, [0, rows])
