"""Day 3.10: a router and its experts, and a model on several processes."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import experts, oracle, qwen_oracle, rank
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
from tests.helpers.toy import QWEN2, QWEN3, ByteTokenizer, random_array, random_tokens, toy_checkpoint

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.types import EngineOptions, QuantizedWeights, UserError, Wanted

# The task of each test that names no other.
pytestmark = pytest.mark.task("3.10.3")

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
def test_shares_and_sums_in_float32(llm):
    """Two experts that are opposites, with shares that are equal in 16 bits, leave their difference."""
    names = (f"switch_mlp.{part}_proj.weight" for part in ("gate", "up", "down"))
    gate, up, down = (in_dtype(expert_weights(MOE), mx.bfloat16)[name][:1] for name in names)
    x, twice = random_array(8, 3, 64, dtype=mx.bfloat16), [mx.concatenate([w, w]) for w in (gate, up)]
    alone = llm.expert_mlp(x, mx.zeros((3, 1), mx.uint32), mx.ones((3, 1)), gate, up, down)
    shares = mx.array([[0.5 + 2**-14, 0.5 - 2**-14]] * 3)
    got = llm.expert_mlp(x, mx.array([[0, 1]] * 3, mx.uint32), shares, *twice, mx.concatenate([down, -down]))
    assert_close(got, as_float64(alone) * 2**-13, EXACT, dtype=mx.bfloat16)


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
def test_experts_in_one_operator_have_the_bits_of_their_layers(llm):
    with on_cpu("cpp"):
        model, tokens = llm.build_model(moe_checkpoint()), random_tokens(9, 2, 7)
    got, model.stack = model(tokens, 0, model.create_kv_cache()), None
    assert mx.array_equal(got, model(tokens, 0, model.create_kv_cache()))


# Several processes. Who computes what changes; what is computed does not


# Sharding the weights


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "want"),
    [
        (4, 2, 1, [((0, 4), (0, 2))]),
        (4, 2, 2, [((0, 2), (0, 1)), ((2, 4), (1, 2))]),
        # More ranks than kv heads: neighbours hold the same one.
        (4, 2, 4, [((0, 1), (0, 1)), ((1, 2), (0, 1)), ((2, 3), (1, 2)), ((3, 4), (1, 2))]),
        (6, 6, 3, [((0, 2), (0, 2)), ((2, 4), (2, 4)), ((4, 6), (4, 6))]),
        (8, 4, 2, [((0, 4), (0, 2)), ((4, 8), (2, 4))]),
    ],
)
def test_heads_of_each_rank(llm, heads, kv_heads, size, want):
    config = replace(QWEN3, num_attention_heads=heads, num_key_value_heads=kv_heads)
    assert [llm.shard_heads(config, each, size) for each in range(size)] == want


@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(4, 2, 3), (4, 2, 8), (12, 4, 6), (6, 2, 3)])
def test_heads_that_cannot_be_split(llm, heads, kv_heads, size):
    config = replace(QWEN3, num_attention_heads=heads, num_key_value_heads=kv_heads)
    with pytest.raises(UserError):
        llm.shard_heads(config, 0, size)


def test_the_inner_width_is_split_between_groups(llm):
    assert [llm.shard_inner(96, 1, each, 2) for each in range(2)] == [(0, 48), (48, 96)]
    assert [llm.shard_inner(96, 32, each, 2) for each in range(2)] == [(0, 32), (32, 96)]
    assert [llm.shard_inner(10, 1, each, 4) for each in range(4)] == [(0, 2), (2, 5), (5, 7), (7, 10)]
    with pytest.raises(UserError):
        llm.shard_inner(96, 64, 0, 2)


@pytest.mark.parametrize("packing", [None, (4, 32), (8, 64), (3, 32), (6, 64)])
@pytest.mark.parametrize("above", [(), (3,)])
def test_a_part_of_a_matrix_is_that_part_of_its_numbers(llm, packing, above):
    w = random_array(10, *above, 24, 256)
    w = w if packing is None else pack(w, *packing)
    rows, columns = llm.shard_rows(w, 8, 20), llm.shard_columns(w, 64, 192)
    assert_close(wide(rows), wide(w)[..., 8:20, :], EXACT, legend="[..., O, I]", what="rows")
    assert_close(wide(columns), wide(w)[..., 64:192], EXACT, legend="[..., O, I]", what="columns")
    assert type(rows) is type(columns) is type(w), "packed weights stay packed"


def test_a_bias_is_split_with_its_outputs(llm):
    assert_close(llm.shard_rows(mx.arange(6.0), 2, 5), [2, 3, 4], EXACT, legend="[O]")


@pytest.mark.parametrize(("start", "end"), [(0, 48), (16, 64), (32, 40)])
def test_no_group_is_cut(llm, start, end):
    with pytest.raises(ValueError):
        llm.shard_columns(pack(random_array(11, 8, 128), 4, 32), start, end)


def outputs_of(llm, checkpoint, x):
    """What the attention and the feed-forward of the first layer make of x."""
    config, own = checkpoint.config, qwen_oracle.below("model.layers.0.", checkpoint.weights)
    attention, mlp = (qwen_oracle.below(f"{module}.", own) for module in ("self_attn", "mlp"))
    mixer = llm.QwenMultiHeadAttention(config, attention, llm.RoPE(config.head_dim, 64, config.rope_theta))
    if "gate.weight" in mlp:
        feed_forward = llm.QwenMoE(config, mlp, llm.ArrayOps())
    else:
        feed_forward = llm.QwenMLP(*(mlp[f"{part}_proj.weight"] for part in ("gate", "up", "down")))
    return {"mixer": mixer(x, [0]), "mlp": feed_forward(x)}


CONFIGS = {"qwen3": QWEN3, "qwen2, with biases": QWEN2, "experts": MOE}


def checkpoint_of(config):
    return moe_checkpoint(config) if config.num_experts else toy_checkpoint(config)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_parts_of_all_ranks_sum_up_to_the_whole(llm, config, size):
    checkpoint, x = checkpoint_of(config), random_array(12, 1, 9, 64)
    parts = [outputs_of(llm, llm.shard_checkpoint(checkpoint, each, size), x) for each in range(size)]
    for name, want in outputs_of(llm, checkpoint, x).items():
        got = sum(as_float64(part[name]) for part in parts)
        assert_close(got, want, F32_MODEL, legend="[B, L, E]", what=name)


@pytest.mark.parametrize("kv_bits", [None, 8])
def test_the_pages_of_a_rank_hold_its_kv_heads(llm, kv_bits):
    model = llm.build_model(llm.shard_checkpoint(toy_checkpoint(QWEN3), 1, 2))
    engine = llm.Engine(model, ByteTokenizer(), options=EngineOptions(3, 8, kv_bits))
    assert {each.shape[:3] for each in engine.core.kv_cache.pools} == {(3, 1, 8)}, "blocks, G, block_size"


def test_a_rank_of_a_packed_checkpoint(llm):
    # 192 inner numbers in groups of 64: one group for the first rank, two for the second.
    checkpoint = load_checkpoint("random:qwen3-shrunk,bits=4", dtype="float32")
    parts = [llm.shard_checkpoint(checkpoint, each, 2) for each in range(2)]
    assert [part.config.intermediate_size for part in parts] == [64, 128]
    x = random_array(13, 1, 5, 64)
    made = [outputs_of(llm, part, x) for part in parts]
    for name, want in outputs_of(llm, checkpoint, x).items():
        got = sum(as_float64(part[name]) for part in made)
        assert_close(got, want, F32_MODEL, legend="[B, L, E]", what=name)
    packed_whole = checkpoint.weights["model.layers.0.mlp.down_proj.weight"]
    assert isinstance(packed_whole, QuantizedWeights)
    narrow = load_checkpoint("random:qwen3-shrunk,bits=4,inner=256", dtype="float32")
    with pytest.raises(UserError):  # a rank's only head of 32 numbers is half a group
        llm.shard_checkpoint(narrow, 0, 4)


@pytest.mark.parametrize("dense_layer", [0, 1])
def test_the_groups_of_every_layer_count(llm, dense_layer):
    """A packed checkpoint may leave some matrices dense: the inner width of the others still has groups."""
    checkpoint = load_checkpoint("random:qwen3-shrunk,bits=4", dtype="float32")
    weights = dict(checkpoint.weights)
    for name, w in checkpoint.weights.items():
        if name.startswith(f"model.layers.{dense_layer}.mlp."):
            weights[name] = mx.dequantize(w.weight, w.scales, w.biases, w.group_size, w.bits)
    parts = [llm.shard_checkpoint(replace(checkpoint, weights=weights), each, 2) for each in range(2)]
    assert [part.config.intermediate_size for part in parts] == [64, 128]


def test_there_is_no_such_rank(llm):
    for each, size in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError):
            llm.shard_checkpoint(toy_checkpoint(QWEN3), each, size)


# The sharded model


def ranks_of(llm, total):
    """Ranks that are never alone, whose sum is what `total` returns."""

    class Pretended(llm.Ranks):
        def total(self, part):
            return total(part)

    made = Pretended()
    made.is_alone = False
    return made


@pytest.mark.task("3.10.4")
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_two_sums_a_layer(llm, config):
    checkpoint, sums = checkpoint_of(config), []
    part = llm.shard_checkpoint(checkpoint, 0, 2)
    ranks = ranks_of(llm, lambda x: sums.append(x.shape) or x)
    model = llm.Qwen(part.config, part.weights, llm.ArrayOps(), ranks=ranks)
    model(random_tokens(14, 1, 5))
    assert sums == [(1, 5, 64)] * 2 * config.num_hidden_layers


@pytest.mark.task("3.10.4")
def test_the_residual_is_no_part_of_the_sum(llm):
    # Sums of nothing but zeros: what the layers add is lost, what they were given stays.
    checkpoint = toy_checkpoint(QWEN3)
    model = llm.Qwen(QWEN3, checkpoint.weights, llm.ArrayOps(), ranks=ranks_of(llm, mx.zeros_like))
    tokens = random_tokens(15, 1, 5)
    layer, x = model.layers[0], random_array(16, 1, 5, 64)
    assert_close(layer(x, [0], layer.mixer.create_cache()), x, EXACT)
    weights = checkpoint.weights
    table = llm.Embedding(QWEN3.vocab_size, QWEN3.hidden_size, weights["model.embed_tokens.weight"])
    norm = llm.RMSNorm(QWEN3.hidden_size, weights["model.norm.weight"], QWEN3.rms_norm_eps)
    want = table.as_linear(norm(table(tokens)))
    assert_close(model(tokens), want, F32, legend="[B, L, V]")


@pytest.mark.task("3.10.4")
def test_a_group_of_one(llm):
    checkpoint, tokens = toy_checkpoint(QWEN2), random_tokens(17, 1, 9)
    model = llm.build_parallel_model(checkpoint, mx.distributed.init())
    assert_close(model(tokens), llm.build_model(checkpoint)(tokens), EXACT, legend="[B, L, V]")


@pytest.mark.task("3.10.4")
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("random:qwen3-moe-shrunk,bits=4", 2),
        pytest.param("default", 2, marks=pytest.mark.long),  # all kinds of engines, in plain MLX
        pytest.param("random:qwen2.5-shrunk", 4, marks=pytest.mark.long),  # four processes to start
    ],
)
def test_ranks_say_what_one_process_says(llm, ranks_of, name, size):
    checkpoint = load_checkpoint(name, dtype="float32")
    # Here first: an unwritten task shows as one, and not as a process that failed.
    llm.build_parallel_model(checkpoint, mx.distributed.init())
    want = rank.of_model(llm, llm.build_model(checkpoint), checkpoint.tokenizer, name)
    rank.check_answers(ranks_of(size).answers(name), want)
