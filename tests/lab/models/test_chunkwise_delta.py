"""The chunkwise form of the gated delta rule, on random sizes, against float64 and the recurrence."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import hybrid_oracle
from tests.helpers.tolerance import F32, as_float64, assert_close

from tiny_llm_ref.layers.chunkwise_delta import chunkwise_delta_rule
from tiny_llm_ref.layers.delta_rule import gated_delta_rule, l2_normalised

QKV = tuple[mx.array, mx.array, mx.array]
# Exponents of a decay and logits of a beta: what is left is all, some, e^-100 or 0, in one sequence as well.
FADING = {"weak": (0.0, 0.01), "some": (0.01, 3.0), "strong": (20.0, 100.0), "any": (0.0, 300.0)}
LOGITS = {"nearly 0": -12.0, "any": 0.0, "nearly 1": 12.0}


@dataclass
class Case:
    """A sequence and the state that it starts from."""

    qkv: QKV
    decay: mx.array
    beta: mx.array
    state: mx.array

    def oracle(self) -> tuple[np.ndarray, np.ndarray]:
        q, k, v, decay, beta, state = map(as_float64, (*self.qkv, self.decay, self.beta, self.state))
        return hybrid_oracle.delta_rule(q, k, v, decay, beta, state)


def drawn(seed: int, length: int, fading: str = "some", logit: str = "any", repeats: bool = False) -> Case:
    """Small sizes by `seed`; with `repeats` a token in three has the key of the first."""
    rng = np.random.default_rng(seed)
    batch, heads, dk, dv = rng.integers(1, 3), rng.integers(1, 4), rng.integers(1, 40), rng.integers(1, 40)
    q, k = rng.normal(size=(2, batch, length, heads, dk))
    if repeats:
        again = rng.random((batch, length)) < 1 / 3
        k = np.where(again[..., None, None], k[:, :1], k)
    exponents = rng.uniform(*FADING[fading], (batch, length, heads))
    # Half of "any" fades as little as it can, so that products of both kinds meet in a block.
    exponents = np.where((rng.random(exponents.shape) < 0.5) & (fading == "any"), 0.0, exponents)
    beta = 1 / (1 + np.exp(-rng.normal(size=exponents.shape) - LOGITS[logit]))
    v, state = rng.normal(size=(batch, length, heads, dv)), rng.normal(size=(batch, heads, dk, dv))
    arrays = [mx.array(each.astype(np.float32)) for each in (q, k, v, np.exp(-exponents), beta, state)]
    return Case((*map(l2_normalised, arrays[:2]), arrays[2]), *arrays[3:])


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("logit", LOGITS)
@pytest.mark.parametrize("fading", FADING)
def test_it_is_the_recurrence_within_rounding(fading: str, logit: str, repeats: bool) -> None:
    """F32: it needs a tenth, as the recurrence does. Where keys repeat, powers of the system would not."""
    rng = np.random.default_rng([len(fading), len(logit), repeats])
    for length in (1, 64, 65, *rng.integers(1, 301, 3).tolist()):
        case, size = drawn(length, length, fading, logit, repeats), int(rng.integers(1, 65))
        want, last = case.oracle()
        by_token = gated_delta_rule(case.qkv, case.decay, case.beta, case.state, length)
        in_blocks = chunkwise_delta_rule(case.qkv, case.decay, case.beta, case.state, length, size)
        what = f"{length} tokens in blocks of {size}"
        for got in (in_blocks, by_token):
            assert_close(got[0], want, F32, legend="[B, L, Hv, Dv]", dtype=mx.float32, what=what)
            assert_close(got[1], last, F32, legend="[B, Hv, Dk, Dv]", dtype=mx.float32, what=what)


@pytest.mark.parametrize("size", [1, 7, 16, 64])
@pytest.mark.parametrize("num_outputs", [0, 1, 15, 16, 17, 40])
def test_only_the_wanted_outputs_are_computed(num_outputs: int, size: int) -> None:
    case = drawn(3, 40)
    want, last = case.oracle()
    out, state = chunkwise_delta_rule(case.qkv, case.decay, case.beta, case.state, num_outputs, size)
    assert_close(out, want[:, 40 - num_outputs :], F32, legend="[B, n, Hv, Dv]", dtype=mx.float32)
    assert_close(state, last, F32)


@pytest.mark.parametrize("length", [64, 100])
def test_a_decay_of_zero_forgets(length: int) -> None:
    """To the bit, what came before does not matter: no product of decays is divided by another."""
    case, other = drawn(5, length), drawn(5, length)
    for each in (case, other):
        each.decay[:, 30] = 0.0
    other.state = other.state * 100
    for part in (*other.qkv, other.beta):
        part[:, :30] = part[:, :30] * 0.5
    out, last = chunkwise_delta_rule(case.qkv, case.decay, case.beta, case.state, length)
    same, also = chunkwise_delta_rule(other.qkv, other.decay, other.beta, other.state, length)
    assert mx.array_equal(out[:, 30:], same[:, 30:]) and mx.array_equal(last, also)
    assert not mx.array_equal(out[:, :30], same[:, :30])
