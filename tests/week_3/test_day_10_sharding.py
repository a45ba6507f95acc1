"""Day 3.10: several processes. Who computes what changes; what is computed does not."""

from dataclasses import replace

import mlx.core as mx
import pytest
from tests.helpers import qwen_oracle, rank
from tests.helpers.experts import MOE, moe_checkpoint, pack, wide
from tests.helpers.tolerance import EXACT, F32, F32_MODEL, as_float64, assert_close
from tests.helpers.toy import QWEN2, QWEN3, ByteTokenizer, random_array, random_tokens, toy_checkpoint

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.types import EngineOptions, QuantizedWeights, UserError

# Sharding the weights


@pytest.mark.task("3.10.3")
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


@pytest.mark.task("3.10.3")
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(4, 2, 3), (4, 2, 8), (12, 4, 6), (6, 2, 3)])
def test_heads_that_cannot_be_split(llm, heads, kv_heads, size):
    config = replace(QWEN3, num_attention_heads=heads, num_key_value_heads=kv_heads)
    with pytest.raises(UserError):
        llm.shard_heads(config, 0, size)


@pytest.mark.task("3.10.3")
def test_the_inner_width_is_split_between_groups(llm):
    assert [llm.shard_inner(96, 1, each, 2) for each in range(2)] == [(0, 48), (48, 96)]
    assert [llm.shard_inner(96, 32, each, 2) for each in range(2)] == [(0, 32), (32, 96)]
    assert [llm.shard_inner(10, 1, each, 4) for each in range(4)] == [(0, 2), (2, 5), (5, 7), (7, 10)]
    with pytest.raises(UserError):
        llm.shard_inner(96, 64, 0, 2)


@pytest.mark.task("3.10.3")
@pytest.mark.parametrize("packing", [None, (4, 32), (8, 64), (3, 32), (6, 64)])
@pytest.mark.parametrize("above", [(), (3,)])
def test_a_part_of_a_matrix_is_that_part_of_its_numbers(llm, packing, above):
    w = random_array(10, *above, 24, 256)
    w = w if packing is None else pack(w, *packing)
    rows, columns = llm.shard_rows(w, 8, 20), llm.shard_columns(w, 64, 192)
    assert_close(wide(rows), wide(w)[..., 8:20, :], EXACT, legend="[..., O, I]", what="rows")
    assert_close(wide(columns), wide(w)[..., 64:192], EXACT, legend="[..., O, I]", what="columns")
    assert type(rows) is type(columns) is type(w), "packed weights stay packed"


@pytest.mark.task("3.10.3")
def test_a_bias_is_split_with_its_outputs(llm):
    assert_close(llm.shard_rows(mx.arange(6.0), 2, 5), [2, 3, 4], EXACT, legend="[O]")


@pytest.mark.task("3.10.3")
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


@pytest.mark.task("3.10.3")
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_parts_of_all_ranks_sum_up_to_the_whole(llm, config, size):
    checkpoint, x = checkpoint_of(config), random_array(12, 1, 9, 64)
    parts = [outputs_of(llm, llm.shard_checkpoint(checkpoint, each, size), x) for each in range(size)]
    for name, want in outputs_of(llm, checkpoint, x).items():
        got = sum(as_float64(part[name]) for part in parts)
        assert_close(got, want, F32_MODEL, legend="[B, L, E]", what=name)


@pytest.mark.task("3.10.3")
@pytest.mark.parametrize("kv_bits", [None, 8])
def test_the_pages_of_a_rank_hold_its_kv_heads(llm, kv_bits):
    model = llm.build_model(llm.shard_checkpoint(toy_checkpoint(QWEN3), 1, 2))
    engine = llm.Engine(model, ByteTokenizer(), options=EngineOptions(3, 8, kv_bits))
    assert {each.shape[:3] for each in engine.core.kv_cache.pools} == {(3, 1, 8)}, "blocks, G, block_size"


@pytest.mark.task("3.10.3")
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


@pytest.mark.task("3.10.3")
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


@pytest.mark.task("3.10.3")
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
