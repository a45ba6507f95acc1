"""Day 4.3: the mixers of a hybrid, and the expert that every token uses."""

from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import hybrid_oracle
from tests.helpers.experts import MOE, expert_weights, in_dtype, packed
from tests.helpers.hybrid_layers import (
    CONFIG,
    HYBRID,
    SIZES,
    E,
    attention_weights,
    delta_net,
    delta_net_weights,
    gated_attention,
    normed,
    shared_expert_weights,
    whole_numbers,
)
from tests.helpers.tolerance import EXACT, F32_MODEL, as_float64, assert_close, rounding
from tests.helpers.toy import random_array

from tiny_llm_lab.types import Wanted

# The task of each test that names no other.
pytestmark = pytest.mark.task("4.3.3")


def in_parts(mixer, x, cache, ends):
    parts = [mixer(x[:, start:end], cache.offsets(len(x)), cache) for start, end in pairwise([0, *ends])]
    return mx.concatenate(parts, axis=1)


# The delta net

UNPROJECTED = {"out_proj.weight": mx.eye(SIZES.value_dim)}  # a mixer ends before the output projection


@pytest.mark.parametrize("length", [1, 3, 33])
def test_a_delta_net_agrees_with_float64(llm, length):
    weights, x = delta_net_weights() | UNPROJECTED, random_array(20, 2, length, E)
    mixer = delta_net(llm, weights, llm.ArrayOps())
    got = mixer(x, [0, 0], mixer.create_cache())
    want = hybrid_oracle.delta_net(CONFIG, HYBRID, weights, normed(x))
    assert_close(got, want, F32_MODEL, legend="[B, L, Hv Dv]", dtype=mx.float32)


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_where_a_prompt_is_cut_changes_no_bit_of_a_state(llm, size):
    mixer, x = delta_net(llm), whole_numbers(21, 2, 70, E)
    whole, cut = mixer.create_cache(), mixer.create_cache()
    mixer(x, [0, 0], whole)
    in_parts(mixer, x, cut, [*range(size, 70, size), 70])
    assert cut.offset == whole.offset == 70
    for got, want in zip(cut.states, whole.states, strict=True):
        for mine, other in zip(got, want, strict=True):
            assert_close(mine, other, EXACT)
    assert float(mx.abs(whole.states[0][1]).max()) > 0.01


def test_a_delta_net_returns_the_last_outputs_alone_from_the_same_state(llm):
    mixer, x = delta_net(llm), whole_numbers(22, 1, 20, E)
    all_of, last = mixer.create_cache(), mixer.create_cache()
    every = mixer(x, [0], all_of)
    for n in (3, 0, 99):
        last.release()
        some = mixer(x, [0], last, Wanted(last=n))
        assert_close(some, every[:, max(0, 20 - n) :], F32_MODEL, legend="[B, n, E]")
        assert_close(last.states[0][1], all_of.states[0][1], EXACT, what="the state")


def test_a_row_of_a_batch_has_the_state_of_the_request_alone(llm):
    mixer, batch = delta_net(llm), llm.BatchingState(3)
    alone, step = [mixer.create_cache() for _ in range(3)], whole_numbers(23, 3, 1, E)
    for i, cache in enumerate(alone):
        mixer(whole_numbers(24 + i, 1, (3, 1, 9)[i], E), [0], cache)
        batch.add_request(cache)
    mixer(step, batch.offsets(3), batch)
    for i, cache in enumerate(alone):
        mixer(step[i : i + 1], [0], cache)
        assert_close(batch.states[i][1], cache.states[0][1], EXACT, what=f"the state of row {i}")
    assert batch.offset == [4, 2, 10]


def test_a_delta_net_in_16_bits_rounds_at_its_ends_only(llm):
    weights = in_dtype(delta_net_weights() | UNPROJECTED, mx.bfloat16)
    x, mixer = whole_numbers(27, 1, 30, E).astype(mx.bfloat16), delta_net(llm, weights)
    got = mixer(x, [0], mixer.create_cache())
    want = hybrid_oracle.delta_net(CONFIG, HYBRID, weights, as_float64(x))
    # One rounding of each projection and one of the result: relative to the output's size.
    error = np.sqrt(np.mean((as_float64(got) - want) ** 2) / np.mean(want**2))
    assert got.dtype == mx.bfloat16 and error < rounding(mx.bfloat16, 2).rtol


# Attention with an output gate


@pytest.mark.task("4.3.4")
@pytest.mark.parametrize("length", [1, 5, 33])
def test_gated_attention_agrees_with_float64(llm, length):
    weights, x = attention_weights(), random_array(30, 2, length, E)
    weights["o_proj.weight"] = mx.eye(CONFIG.num_attention_heads * CONFIG.head_dim)
    mixer = gated_attention(llm, weights)
    got = mixer(x, [0, 0], mixer.create_cache())
    want = hybrid_oracle.attention(CONFIG, HYBRID, weights, normed(x))
    assert_close(got, want, F32_MODEL, legend="[B, L, H D]", dtype=mx.float32)


@pytest.mark.task("4.3.4")
def test_gated_attention_goes_on_from_its_cache(llm):
    mixer, x = gated_attention(llm), random_array(31, 2, 12, E)
    whole, cache = mixer(x, [0, 0], mixer.create_cache()), mixer.create_cache()
    parts = [mixer(x[:, a:b], [a, a], cache) for a, b in pairwise([0, 5, 6, 12])]
    assert_close(mx.concatenate(parts, axis=1), whole, F32_MODEL, legend="[B, L, E]")
    assert cache.offset == 12


@pytest.mark.task("4.3.4")
@pytest.mark.parametrize("n", [0, 1, 4, 99])
@pytest.mark.parametrize("is_batched", [False, True])
def test_gated_attention_of_the_last_tokens_alone(llm, n, is_batched):
    mixer, x = gated_attention(llm), random_array(32, 1, 9, E)
    caches = [mixer.create_cache() for _ in "ab"]
    for i, cache in enumerate(caches):
        mixer(random_array(34, 1, 3, E), [0], cache)
        if is_batched:
            caches[i] = llm.BatchingKvCache(1)
            caches[i].add_request(cache)
    every, some = mixer(x, [3], caches[0]), mixer(x, [3], caches[1], Wanted(last=n))
    assert_close(some, every[:, max(0, 9 - n) :], F32_MODEL, legend="[B, n, H D]")


@pytest.mark.task("4.3.4")
def test_a_closed_gate_lets_nothing_through(llm):
    """Gates are the second half of each head's rows of q_proj, and here of head 1 alone they are open."""
    weights, dim = attention_weights(), CONFIG.head_dim
    rows = np.array(weights["q_proj.weight"]).reshape(4, 2, dim, E)
    rows[:, 1], rows[1, 1] = -100.0, 100.0
    weights["q_proj.weight"] = mx.array(rows.reshape(-1, E))
    x, mixer = mx.abs(random_array(33, 1, 6, E)) + 0.1, gated_attention(llm, weights)
    got = mixer(x, [0], mixer.create_cache())
    assert float(mx.abs(got[..., dim : 2 * dim]).max()) > 0.01
    others = mx.concatenate([got[..., :dim], got[..., 2 * dim :]], axis=-1)
    assert_close(others, mx.zeros_like(others), F32_MODEL, legend="[B, L, H D]", what="closed heads")


# The expert of all tokens


@pytest.mark.task("4.3.5")
@pytest.mark.parametrize("shape", [(1, 1), (2, 7), (1, 90)])
@pytest.mark.parametrize("is_packed", [False, True])
def test_the_shared_expert_joins_the_routed_ones(llm, shape, is_packed):
    experts = expert_weights(MOE)
    weights = shared_expert_weights(packed(experts) if is_packed else experts)
    x = random_array(40, *shape, MOE.hidden_size)
    got = llm.SharedExpertMoE(MOE, weights, llm.ArrayOps())(x)
    want = hybrid_oracle.feed_forward(MOE, weights, as_float64(x))
    assert_close(got, want, F32_MODEL, legend="[..., E]", dtype=mx.float32)


@pytest.mark.task("4.3.5")
def test_the_shared_expert_has_one_gate_a_token(llm):
    weights = shared_expert_weights(expert_weights(MOE))
    x = random_array(41, 3, MOE.hidden_size)
    routed = llm.QwenMoE(MOE, weights, llm.ArrayOps())(x)
    closed = weights | {"shared_expert_gate.weight": -1000 * x[:1]}
    got = llm.SharedExpertMoE(MOE, closed, llm.ArrayOps())(x)
    assert_close(got[0], routed[0], EXACT, legend="[E]", what="a token whose gate is closed")
    halved = weights | {"shared_expert_gate.weight": mx.zeros((1, MOE.hidden_size))}
    half = llm.SharedExpertMoE(MOE, halved, llm.ArrayOps())(x)
    doubled = {
        f"shared_expert.{part}_proj.weight": weights[f"shared_expert.{part}_proj.weight"]
        for part in ("gate", "up")
    }
    whole = llm.QwenMLP(*doubled.values(), weights["shared_expert.down_proj.weight"])(x)
    assert_close(half - routed, whole / 2, F32_MODEL, legend="[T, E]", what="what gates of 0 add")
