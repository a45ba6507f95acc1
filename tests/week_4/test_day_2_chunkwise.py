"""Day 4.2: the gated delta rule in blocks of tokens, against float64 token by token."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import hybrid_oracle
from tests.helpers.tolerance import EXACT, F32, as_float64, assert_close

pytestmark = pytest.mark.task("4.2.1")

# Exponents of a decay: what is left is nearly all, some, or e^-100, or all three in one block.
FADING = {"weak": (0.0, 0.01), "some": (0.01, 3.0), "strong": (20.0, 100.0), "any": (0.0, 300.0)}


def drawn(seed, length, fading="some", repeats=False):
    """The arguments of the rule, of random sizes; with `repeats` a token in two has the first one's key."""
    rng = np.random.default_rng(seed)
    batch, heads, dk, dv = rng.integers(1, 3), rng.integers(1, 4), *rng.integers(2, 40, 2)
    q, k = rng.normal(size=(2, batch, length, heads, dk))
    if repeats:
        k = np.where(rng.random((batch, length, 1, 1)) < 0.5, k[:, :1], k)
    k = k / np.sqrt((k**2).sum(axis=-1, keepdims=True))
    exponents = rng.uniform(*FADING[fading], (batch, length, heads))
    exponents[rng.random(exponents.shape) < 0.3] = 0.0
    v, state = rng.normal(size=(batch, length, heads, dv)), rng.normal(size=(batch, heads, dk, dv))
    beta = np.ones(exponents.shape) if repeats else rng.random(exponents.shape)
    q, k, v, decay, beta, state = (
        mx.array(each.astype(np.float32)) for each in (q, k, v, np.exp(-exponents), beta, state)
    )
    return (q, k, v), decay, beta, state


def by_token(qkv, *others):
    """Outputs [B, L, Hv, Dv] and the last state, in float64."""
    return hybrid_oracle.delta_rule(*map(as_float64, (*qkv, *others)))


def assert_is_the_rule(llm, arguments, num_outputs, block_size):
    length = arguments[1].shape[1]
    want, last = by_token(*arguments)
    out, state = llm.chunkwise_delta_rule(*arguments, num_outputs, block_size)
    what = f"{length} tokens in blocks of {block_size}"
    legend = "[B, n, Hv, Dv]"
    assert_close(out, want[:, length - num_outputs :], F32, legend=legend, dtype=mx.float32, what=what)
    assert_close(state, last, F32, legend="[B, Hv, Dk, Dv]", dtype=mx.float32, what=f"the state, {what}")


def test_three_tokens_by_hand(llm):
    """The chapter's table: the corrections solve a triangular system, and the state is their sum."""
    keys = mx.array([[1.0, 0.0], [0.6, 0.8], [1.0, 0.0]])[None, :, None]
    values = mx.array([[4.0, 2.0], [1.0, 1.0], [6.0, 0.0]])[None, :, None]
    decay, beta = mx.array([[[1.0], [0.5], [1.0]]]), mx.array([[[1.0], [1.0], [0.5]]])
    queries = mx.array([[1.0, 0.0]] * 3)[None, :, None]
    for size in (3, 2, 1):
        out, state = llm.chunkwise_delta_rule(
            (queries, keys, values), decay, beta, mx.zeros((1, 1, 2, 2)), 3, size
        )
        assert_close(state[0, 0], [[3.94, 0.62], [-0.16, 0.32]], F32, legend="[Dk, Dv]", what="the state")
        assert_close(out[0, :, 0], [[4.0, 2.0], [1.88, 1.24], [3.94, 0.62]], F32, legend="[L, Dv]")


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("fading", FADING)
def test_blocks_are_the_recurrence_within_rounding(llm, fading, repeats):
    rng = np.random.default_rng([len(fading), repeats])
    for length in (1, 64, 65, *rng.integers(2, 200, 2).tolist()):
        size = int(rng.integers(1, 65))
        assert_is_the_rule(llm, drawn(length, length, fading, repeats), length, size)


@pytest.mark.parametrize("size", [1, 7, 16, 64])
@pytest.mark.parametrize("num_outputs", [0, 1, 16, 17, 40])
def test_only_the_wanted_outputs_are_returned(llm, num_outputs, size):
    assert_is_the_rule(llm, drawn(3, 40), num_outputs, size)


def test_the_same_key_in_every_token(llm):
    """All below the diagonal is 1: powers of the system grow like binomials, and cancel in float32."""
    (q, k, v), decay, _, state = drawn(4, 64)
    arguments = (q, mx.repeat(k[:, :1], 64, axis=1), v), mx.ones_like(decay), mx.ones_like(decay), state
    assert_is_the_rule(llm, arguments, 64, 64)


def test_a_decay_of_zero_forgets_all_before_it(llm):
    """To the bit, and without dividing by it."""
    (q, k, v), decay, beta, state = drawn(5, 100)
    decay[:, 30] = 0.0
    out, last = llm.chunkwise_delta_rule((q, k, v), decay, beta, state, 70)
    assert_is_the_rule(llm, ((q, k, v), decay, beta, state), 100, 64)
    v[:, :30] = v[:, :30] * 100
    same, also = llm.chunkwise_delta_rule((q, k, v), decay, beta, 100 * state, 70)
    assert_close(same, out, EXACT, legend="[B, n, Hv, Dv]")
    assert_close(also, last, EXACT, what="the state")
