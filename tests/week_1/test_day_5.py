"""Day 1.5: the whole Qwen, old and new, without a cache."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import qwen_oracle
from tests.helpers.tolerance import EXACT, F32, F32_MODEL, as_float64, assert_close, peak_bytes, rounding
from tests.helpers.toy import (
    QWEN2,
    QWEN3,
    layer_weights,
    plain_model,
    random_array,
    random_tokens,
    toy_checkpoint,
    toy_weights,
)

from tiny_llm_lab.types import ALL, RopeScaling, Wanted

# The task of each test that names no other.
pytestmark = pytest.mark.task("1.5.4")

CONFIGS = pytest.mark.parametrize("config", [QWEN3, QWEN2], ids=lambda config: config.model_type)


@pytest.mark.task("1.5.1")
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5)])
def test_embedding_looks_rows_up(llm, shape, dtype):
    table, tokens = random_array(1, 256, 6, dtype=dtype), random_tokens(2, *shape)
    got = llm.Embedding(256, 6, table)(tokens)
    assert_close(got, as_float64(table)[np.array(tokens)], EXACT, legend="[B, L, E]", dtype=dtype)


@pytest.mark.task("1.5.1")
@pytest.mark.parametrize("shape", [(6,), (2, 3, 6)])
def test_embedding_as_the_output_head(llm, shape):
    table, x = random_array(4, 9, 6), random_array(5, *shape)
    got = llm.Embedding(9, 6, table).as_linear(x)
    assert_close(got, as_float64(x) @ as_float64(table).T, legend="[..., V]")


def attention_layer(llm, config, seed=0):
    weights = qwen_oracle.below("self_attn.", layer_weights(config, np.random.default_rng(seed)))
    rope = llm.RoPE(config.head_dim, 64, config.rope_theta)
    return llm.QwenMultiHeadAttention(config, weights, rope), weights


@pytest.mark.task("1.5.2")
@CONFIGS
@pytest.mark.parametrize(("B", "L"), [(1, 1), (2, 7)])
def test_qwen_attention(llm, config, B, L):
    layer, weights = attention_layer(llm, config)
    x = random_array(10, B, L, config.hidden_size)
    want = qwen_oracle.attention(config, weights, x)
    assert_close(layer(x, [0] * B), want, F32_MODEL, legend="[B, L, E]", dtype=mx.float32)


@pytest.mark.task("1.5.2")
def test_the_norms_of_heads_have_the_configured_eps(llm):
    config = replace(QWEN3, rms_norm_eps=0.5)
    layer, weights = attention_layer(llm, config)
    x = random_array(13, 1, 6, config.hidden_size)
    # Large enough to be seen: with the default of RMSNorm the scores would be twice as large.
    assert_close(layer(x, [0]), qwen_oracle.attention(config, weights, x), F32_MODEL, legend="[B, L, E]")


@pytest.mark.task("1.5.2")
@CONFIGS
def test_qwen_attention_can_be_unmasked(llm, config):
    layer, _ = attention_layer(llm, config)
    x = random_array(11, 1, 5, config.hidden_size)
    hidden_past, seen_past = layer(x, [0], mask="causal"), layer(x, [0], mask=None)
    assert_close(hidden_past[:, -1], seen_past[:, -1], F32_MODEL, what="the last row, which sees everything")
    assert np.abs(as_float64(hidden_past) - as_float64(seen_past))[:, 0].max() > 1e-2


@pytest.mark.task("1.5.2")
@CONFIGS
def test_qwen_attention_depends_on_distances_alone(llm, config):
    layer, weights = attention_layer(llm, config)
    x = random_array(12, 1, 6, config.hidden_size)
    assert_close(layer(x, [9]), qwen_oracle.attention(config, weights, x, offset=9), F32_MODEL)
    assert_close(layer(x, [9]), layer(x, [0]), F32_MODEL)


@pytest.mark.task("1.5.2")
@CONFIGS
@pytest.mark.parametrize("keep", [1, 3, 6])
def test_attention_of_kept_tokens_reads_their_rows_of_a_mask(llm, config, keep):
    layer, _ = attention_layer(llm, config)
    x, mask = random_array(14, 1, 6, config.hidden_size), llm.causal_mask(6, 6, mx.float32)
    got, what = layer(x, [0], mask=mask, wanted=Wanted(keep)), "tokens whose rows of the mask are the last"
    assert_close(got, layer(x, [0])[:, -keep:], F32_MODEL, what=what)


def block_of(llm, config, seed):
    weights = layer_weights(config, np.random.default_rng(seed))
    mlp = llm.QwenMLP(*(weights[f"mlp.{part}_proj.weight"] for part in ("gate", "up", "down")))
    return llm.QwenTransformerBlock(config, weights, attention_layer(llm, config, seed)[0], mlp), weights


@pytest.mark.task("1.5.3")
@CONFIGS
@pytest.mark.parametrize(("B", "L"), [(1, 1), (2, 5)])
def test_qwen_block(llm, config, B, L):
    block, weights = block_of(llm, config, seed=1)
    x = random_array(20, B, L, config.hidden_size)
    want = qwen_oracle.block(config, weights, x)
    assert_close(block(x, [0] * B), want, F32_MODEL, legend="[B, L, E]", dtype=mx.float32)


@pytest.mark.task("1.5.3")
def test_qwen_block_adds_to_a_large_residual(llm):
    # What a block adds has the size of its weights, not of its input: both paths are normalised.
    block, weights = block_of(llm, QWEN3, seed=2)
    x = random_array(21, 1, 4, QWEN3.hidden_size) * 100
    added = as_float64(block(x, [0])) - as_float64(x)
    want = qwen_oracle.block(QWEN3, weights, x) - as_float64(x)
    assert_close(added, want, rtol_of_large(100))


def rtol_of_large(size):
    """A difference of numbers of `size` keeps their absolute error."""
    return type(F32)(F32_MODEL.rtol, F32_MODEL.atol * size)


@CONFIGS
@pytest.mark.parametrize(("B", "L"), [(1, 1), (1, 9), (3, 6)])
def test_qwen_model(llm, config, B, L):
    tokens = random_tokens(30, B, L)
    want = qwen_oracle.logits(config, toy_weights(config), tokens)
    assert_close(plain_model(llm, config)(tokens), want, F32_MODEL, legend="[B, L, V]", dtype=mx.float32)


def test_qwen_model_never_sees_the_future(llm):
    model, tokens = plain_model(llm), random_tokens(31, 1, 12)
    changed = mx.concatenate([tokens[:, :8], (tokens[:, 8:] + 1) % 256], axis=1)
    assert_close(model(changed)[:, :8], model(tokens)[:, :8], EXACT)


@CONFIGS
@pytest.mark.parametrize("keep", [1, 2, 7, 9, ALL])
def test_qwen_model_keeps_the_last_logits(llm, config, keep):
    model, tokens = plain_model(llm, config), random_tokens(33, 2, 7)
    want = as_float64(model(tokens))[:, -min(keep, 7) :]
    assert_close(model(tokens, wanted=Wanted(last=keep)), want, F32_MODEL, legend="[B, n, V]")


@CONFIGS
def test_qwen_model_can_keep_no_logits(llm, config):
    assert plain_model(llm, config)(random_tokens(34, 2, 7), wanted=Wanted(last=0)).shape == (2, 0, 258)


def test_qwen_model_spends_nothing_on_other_logits(llm):
    wide = replace(QWEN3, vocab_size=32 * 1024)
    model, tokens = plain_model(llm, wide), random_tokens(35, 1, 64)
    all_logits = 64 * wide.vocab_size * 4
    assert peak_bytes(lambda: model(tokens, wanted=Wanted(last=1))) < all_logits / 4


def test_qwen_model_reads_its_shape_from_the_configuration(llm):
    config = replace(
        QWEN2, num_hidden_layers=1, num_attention_heads=6, num_key_value_heads=1, head_dim=8, hidden_size=32
    )
    checkpoint = toy_checkpoint(config, seed=3)
    tokens = random_tokens(36, 1, 5)
    model = llm.build_model(checkpoint)
    assert model.config == config
    assert_close(model(tokens), qwen_oracle.logits(config, checkpoint.weights, tokens), F32_MODEL)
    is_plain = getattr(model, "ops", None) is None
    want = model(tokens)
    assert_close(llm.QwenModel(config, checkpoint.weights)(tokens), want, EXACT if is_plain else F32_MODEL)


def test_qwen_model_tells_layer_1_from_layer_10(llm):
    # "model.layers.1" without its dot is how the names of layer 10 begin, too.
    config = replace(QWEN3, num_hidden_layers=11)
    tokens = random_tokens(38, 1, 4)
    want = qwen_oracle.logits(config, toy_weights(config), tokens)
    assert_close(plain_model(llm, config)(tokens), want, F32_MODEL, legend="[B, L, V]")


def test_qwen_model_builds_every_layer_by_its_method(llm):
    class Counting(llm.QwenModel):
        def layer(self, weights, *others):
            made.append((sorted(weights), super().layer(weights, *others)))
            return made[-1][1]

    made, weights = [], toy_weights(QWEN3)
    layers = Counting(QWEN3, weights).layers
    assert [layer for _, layer in made] == layers and len(made) == QWEN3.num_hidden_layers
    begin = "model.layers.1."
    names = sorted(name.removeprefix(begin) for name in weights if name.startswith(begin))
    assert made[1][0] == names, "a layer's own weights, without model.layers.1"


def test_the_norms_of_the_model_have_the_configured_eps(llm):
    config, tokens = replace(QWEN3, rms_norm_eps=0.5), random_tokens(39, 1, 6)
    want = qwen_oracle.logits(config, toy_weights(config), tokens)
    assert_close(plain_model(llm, config)(tokens), want, F32_MODEL, legend="[B, L, V]")


def test_qwen_model_serves_as_many_positions_as_configured(llm):
    config, tokens = replace(QWEN3, max_position_embeddings=80), random_tokens(40, 1, 81)
    want = qwen_oracle.logits(config, toy_weights(config), tokens[:, :80])
    assert_close(plain_model(llm, config)(tokens[:, :80]), want, F32_MODEL, legend="[B, L, V]")
    with pytest.raises(ValueError):
        mx.eval(plain_model(llm, config)(tokens))


def test_qwen_model_stretches_positions_as_configured(llm):
    # So slow that no token of a short text is turned: then what came before has no order for a single layer.
    still = replace(QWEN3, num_hidden_layers=1, rope_scaling=RopeScaling("linear", 1e9, 1024))
    swapped = mx.array([[7, 3, 9, 5]]), mx.array([[9, 7, 3, 5]])
    model = plain_model(llm, still)
    one, other = (model(tokens, wanted=Wanted(last=1)) for tokens in swapped)
    assert_close(one, other, F32_MODEL)


def test_qwen_model_in_bfloat16(llm):
    weights = {name: w.astype(mx.bfloat16) for name, w in toy_weights(QWEN3).items()}
    tokens = random_tokens(37, 1, 6)
    want = qwen_oracle.logits(QWEN3, weights, tokens)
    # About ten roundings in each of two layers, on logits of size two.
    assert_close(llm.QwenModel(QWEN3, weights)(tokens), want, rounding(mx.bfloat16, 40), dtype=mx.bfloat16)
