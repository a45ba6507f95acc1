"""Day 3.10: a router, and its experts."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import experts, oracle, qwen_oracle
from tests.helpers.devices import on_cpu
from tests.helpers.experts import (
    MOE,
    expert_weights,
    feed_forward,
    in_dtype,
    moe_checkpoint,
    pack,
    packed,
    wide,
)
from tests.helpers.tolerance import EXACT, F32, F32_MODEL, as_float64, assert_close
from tests.helpers.toy import random_array, random_tokens

from tiny_llm_lab.types import Wanted

# The router


@pytest.mark.task("3.10.1")
@pytest.mark.parametrize(("norm", "want"), [(False, [0.5, 0.3]), (True, [0.625, 0.375])])
def test_the_router_of_four_experts(llm, norm, want):
    # The products are the logarithms of 0.05, 0.5, 0.15 and 0.3: those are the probabilities.
    gate = mx.log(mx.array([[0.05], [0.5], [0.15], [0.3]]))
    chosen, weights = llm.route(llm.linear(mx.ones((1, 1)), gate), 2, norm)
    assert_close(chosen, [[1, 3]], EXACT, legend="[T, K]", what="the experts")
    assert_close(weights, [want], F32, legend="[T, K]", dtype=mx.float32, what="their weights")


@pytest.mark.task("3.10.1")
@pytest.mark.parametrize("shape", [(1,), (7,), (2, 5)])
@pytest.mark.parametrize("norm", [False, True])
def test_the_router_agrees_with_a_loop_over_tokens(llm, shape, norm):
    config = replace(MOE, norm_topk_prob=norm)
    x, gate = random_array(1, *shape, 64), random_array(2, 8, 64) * 0.2
    chosen, weights = llm.route(llm.linear(x, gate), 3, norm)
    want = [experts.routed(config, gate, row) for row in as_float64(x).reshape(-1, 64)]
    assert_close(chosen, np.array([e for e, _ in want]).reshape(*shape, 3), EXACT, legend="[..., K]")
    assert_close(weights, np.array([w for _, w in want]).reshape(*shape, 3), F32, legend="[..., K]")


@pytest.mark.task("3.10.1")
def test_the_router_makes_probabilities_in_float32(llm):
    # One probability in bfloat16 would be off by up to 2^-9 of itself, a hundred times what is allowed.
    gate = mx.array([[1.0], [0.5], [0.25], [0.0]]).astype(mx.bfloat16)
    _, weights = llm.route(llm.linear(mx.ones((1, 1), mx.bfloat16), gate), 2, False)
    want = oracle.softmax(np.array([1.0, 0.5, 0.25, 0.0]))[:2]
    assert_close(weights, [want], F32, dtype=mx.float32)


@pytest.mark.task("3.10.1")
def test_the_router_takes_any_score(llm):
    gate = mx.array([[300.0], [299.0], [-300.0]])
    _, weights = llm.route(llm.linear(mx.ones((1, 1)), gate), 2, False)
    assert_close(weights, [oracle.softmax(np.array([300.0, 299.0, -300.0]))[:2]], F32)


# The experts


@pytest.mark.task("3.10.2")
def test_uses_are_grouped_by_expert(llm):
    order, place = llm.group_by_expert(mx.array([[2, 0], [1, 2], [0, 1]]))
    uses = np.array([2, 0, 1, 2, 0, 1])
    assert uses[np.array(order)].tolist() == [0, 0, 1, 1, 2, 2]
    assert uses[np.array(order)][np.array(place)].tolist() == uses.tolist()
    assert sorted(np.array(order).tolist()) == list(range(6)), "every use once"


@pytest.mark.task("3.10.2")
@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("packing", [None, (4, 64), (8, 32), (3, 64)])
def test_every_row_meets_the_matrix_of_its_expert(llm, packing, is_sorted):
    w = random_array(3, 5, 24, 128)
    w = w if packing is None else pack(w, *packing)
    x, chosen = random_array(4, 11, 128), np.random.default_rng(5).integers(0, 5, 11)
    chosen = np.sort(chosen) if is_sorted else chosen
    got = llm.expert_linear(x, w, mx.array(chosen.astype(np.uint32)), is_sorted)
    want = [wide(w)[expert] @ row for expert, row in zip(chosen, as_float64(x), strict=True)]
    # Sums of 128 products of size one: eleven times as large as what F32 speaks of.
    assert_close(as_float64(got) / np.sqrt(128), np.array(want) / np.sqrt(128), F32, legend="[T, O]")


@pytest.mark.task("3.10.2")
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (1, 90)])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("is_packed", [False, True])
def test_experts_agree_with_a_loop_over_tokens(llm, shape, norm, is_packed):
    config, weights = replace(MOE, norm_topk_prob=norm), expert_weights(MOE)
    weights = packed(weights) if is_packed else weights
    x = random_array(6, *shape, 64)
    got = llm.QwenMoE(config, weights, llm.ArrayOps())(x)
    # Three products one after the other, as in a layer.
    assert_close(got, feed_forward(config, weights, x), F32_MODEL, legend="[..., E]", dtype=mx.float32)


@pytest.mark.task("3.10.2")
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("num_tokens", [2, 40])
@pytest.mark.parametrize("is_packed", [False, True])
def test_experts_in_16_bits(llm, dtype, num_tokens, is_packed):
    weights = expert_weights(MOE)
    weights = in_dtype(packed(weights) if is_packed else weights, dtype)
    x = random_array(7, 120, 64, dtype=dtype)
    # Where the third and the fourth score are nearly equal, a rounding would decide: leave such tokens out.
    scores = np.sort(as_float64(x) @ wide(weights["gate.weight"]).T)
    x = x[mx.array(np.flatnonzero(scores[:, -3] - scores[:, -4] > 0.2)[:num_tokens])]
    assert len(x) == num_tokens
    got, want = llm.QwenMoE(MOE, weights, llm.ArrayOps())(x), feed_forward(MOE, weights, x)
    assert got.dtype == dtype
    error = np.sqrt(np.mean((as_float64(got) - want) ** 2) / np.mean(want**2))
    # Some five roundings on the way, each by a third of the epsilon in the mean; 16 bits in MLX's own
    # packed product on a CPU alone lose five times the epsilon.
    assert error < {mx.float16: 2.0**-10, mx.bfloat16: 2.0**-7}[dtype], f"relative error {error:.2g}"


@pytest.mark.task("3.10.2")
@pytest.mark.parametrize("num_tokens", [1, 5, 21, 22, 90])
@pytest.mark.parametrize("is_packed", [False, True])
def test_rows_are_only_promised_to_be_sorted_when_they_are(llm, monkeypatch, num_tokens, is_packed):
    """A GPU computes anything when the promise is broken; a CPU does not look at it."""
    promised = []

    def watch(name):
        gather = getattr(mx, name)

        def watched(*args, **given):
            if given.get("sorted_indices"):
                promised.append(given["rhs_indices"].tolist())
            return gather(*args, **given)

        monkeypatch.setattr(mx, name, watched)

    watch("gather_mm")
    watch("gather_qmm")
    weights = expert_weights(MOE)
    llm.QwenMoE(MOE, packed(weights) if is_packed else weights, llm.ArrayOps())(
        random_array(9, 1, num_tokens, 64)
    )
    assert all(experts == sorted(experts) for experts in promised)


@pytest.mark.task("3.10.2")
def test_experts_of_no_token(llm):
    got = llm.QwenMoE(MOE, expert_weights(MOE), llm.ArrayOps())(mx.zeros((1, 0, 64)))
    assert got.shape == (1, 0, 64)


@pytest.mark.task("3.10.2")
@pytest.mark.parametrize("config", [MOE, replace(MOE, mlp_only_layers=(), decoder_sparse_step=2)])
def test_a_model_with_dense_layers_and_layers_of_experts(llm, config):
    checkpoint, tokens = moe_checkpoint(config), random_tokens(8, 1, 40)
    got = llm.build_model(checkpoint)(tokens)
    want = qwen_oracle.logits(config, checkpoint.weights, tokens)
    assert_close(got, want, F32_MODEL, legend="[B, L, V]")


@pytest.mark.task("3.10.2")
def test_experts_with_a_cache_and_rows_of_their_own(llm):
    model, tokens = llm.build_model(moe_checkpoint()), random_tokens(9, 1, 12)
    whole, cache = model(tokens), model.create_kv_cache()
    model(tokens[:, :11], 0, cache, wanted=Wanted(last=0))
    got = model(tokens[:, 11:], 11, cache, wanted=Wanted(last=1))
    assert_close(got, whole[:, 11:], F32_MODEL, legend="[B, 1, V]")


@pytest.mark.task("3.10.2")
def test_layers_of_experts_are_in_no_stack(llm):
    with on_cpu("cpp"):
        model = llm.build_model(moe_checkpoint())
    assert model.stack is None
