"""Where kernels list the highest scores, the sampler cuts what it cuts where it sorts them all."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.tolerance import EXACT, as_float64, assert_close
from tests.helpers.toy import random_array
from tests.kernels.conftest import NAMES, kernel_set

from tiny_llm_lab.runtime.native.cpp_ops import CppOps

V = 5000


@pytest.fixture(params=NAMES)
def both(request, llm):
    """both(name, scores, setting): a cut without operators and with one copy of the kernels."""
    ops = CppOps(kernel_set(request.param))

    def run(name, scores, setting):
        return [np.array(getattr(llm, name)(scores, setting, by)) for by in (None, ops)]

    return run


# Spreads from nearly flat, where a nucleus has thousands of tokens, to peaked.
@pytest.mark.parametrize("spread", [0.01, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("p", [1e-6, 0.3, 0.9, 0.99, 1 - 1e-7])
def test_top_p(both, spread, p):
    scores = random_array(int(spread), 3, V) * spread
    want, got = both("apply_top_p", scores, p)
    assert_close(got, want, EXACT, legend="[B, V]")


@pytest.mark.parametrize("levels", [1, 3, 40, 2000])
@pytest.mark.parametrize("p", [0.2, 0.5, 0.75, 0.95])
def test_top_p_parts_ties_in_the_same_way(both, levels, p):
    steps = np.random.default_rng(levels).integers(0, levels, size=(2, V))
    scores = mx.array((steps * 20 / levels).astype(np.float32))
    want, got = both("apply_top_p", scores, p)
    assert_close(got, want, EXACT, legend="[B, V]")


@pytest.mark.parametrize("k", [1, 20, 1023, 1024, 1025, V - 1])
@pytest.mark.parametrize("p", [0.5, 0.95])
def test_top_p_after_top_k(both, k, p):
    scores = random_array(k, 2, 3, V) * 3
    want_k, got_k = both("apply_top_k", scores, k)
    assert_close(got_k, want_k, EXACT, legend="[..., V]")
    assert int(np.isfinite(as_float64(got_k)).sum(-1).min()) == k
    want, got = both("apply_top_p", mx.array(got_k), p)
    assert_close(got, want, EXACT, legend="[..., V]")


def test_cuts_of_other_rows(both):
    wide = random_array(5, 2, V) * 3
    tied = [wide.astype(dtype).astype(mx.float32) for dtype in (mx.float16, mx.bfloat16)]
    for scores in (*tied, random_array(6, V) * 3, random_array(7, 2, 40)):
        for name, setting in (("apply_top_k", 7), ("apply_top_k", 30), ("apply_top_p", 0.9)):
            want, got = both(name, scores, setting)
            assert_close(got, want, EXACT, what=f"{name} {setting} of {scores.shape}")
