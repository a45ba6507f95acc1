"""What gated attention needs besides attention: a gate, and heads of which some dimensions are rotated."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import oracle
from tests.helpers.matrices import evaluated
from tests.helpers.tolerance import as_float64
from tests.helpers.toy import random_array
from tests.kernels.test_elementwise import EPS, SHAPES, check, tables, turned


@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("is_normed", [False, True])
def test_rope_of_the_first_dimensions(k, dtype, traditional, is_normed):
    for B, L, H, D, R in ((1, 1, 1, 3, 2), (2, 3, 2, 14, 6), (2, 5, 4, 256, 64), (1, 4, 2, 96, 32)):
        x, (cos, sin) = random_array(1, B, L, H, D, dtype=dtype), tables(50, R // 2)
        weight = random_array(2, D, dtype=dtype) if is_normed else None
        wide = oracle.rms_norm(x, weight, EPS) if is_normed else as_float64(x)
        want = np.concatenate([turned(wide[..., :R], [9] * B, cos, sin, traditional), wide[..., R:]], axis=-1)
        check(k.rope(x, 9, cos, sin, traditional, weight, EPS), want, dtype, f"{R} of {D}")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sigmoid_gate(k, dtype, shape):
    x, gate = (random_array(seed, *shape, dtype=dtype) for seed in (1, 2))
    for each in (gate * 3, gate[..., :1] * 3):
        want = as_float64(x) / (1 + np.exp(-as_float64(each)))
        check(k.sigmoid_gate(x, each), want, dtype, f"{shape} and {each.shape}")


def test_sigmoid_gate_of_views_and_extreme_numbers(k, dtype):
    (both,) = evaluated(random_array(1, 3, 5, 200, dtype=dtype))
    x, gate = both[::-1, 0, :100], both[:, -1, ::2]
    check(k.sigmoid_gate(x, gate), as_float64(x) / (1 + np.exp(-as_float64(gate))), dtype, "rows")
    ends = mx.array([[65504.0], [-65504.0], [mx.nan]], dtype)
    got = as_float64(k.sigmoid_gate(x, ends))
    assert np.array_equal(got[0], as_float64(x)[0]) and not got[1].any() and np.isnan(got[2]).all()
