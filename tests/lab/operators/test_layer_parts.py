"""Norms, rotation and the operators of a layer of the `mlx` set, against float64."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import oracle
from tests.helpers.tolerance import EXACT, as_float64, assert_close, rounding
from tests.helpers.toy import QWEN2, QWEN3, layer_weights, random_array

from tiny_llm_lab.types import LayerWeights, RopeScaling
from tiny_llm_ref.layers.positional_encoding import RoPE


def test_a_norm_behind_a_residual(ops, dtype):
    for shape in ((3, 1, 33), (2, 5, 2, 24), (0, 1, 33)):
        x, delta = random_array(1, *shape, dtype=dtype), random_array(2, *shape, dtype=dtype)
        weight = random_array(3, shape[-1], dtype=dtype)
        total, normed = ops.rms_norm(x, weight, 1e-6, delta)
        assert_close(total, as_float64(x) + as_float64(delta), rounding(dtype), dtype=dtype)
        assert_close(normed, oracle.rms_norm(total, weight, 1e-6), rounding(dtype, 4), dtype=dtype)
        same, normed = ops.rms_norm(x, weight, 1e-6)
        assert_close(same, as_float64(x), EXACT, dtype=dtype)
        assert_close(normed, oracle.rms_norm(x, weight, 1e-6), rounding(dtype, 4), dtype=dtype)


def test_swiglu(ops, dtype):
    gate, up = random_array(1, 5, 33, dtype=dtype) * 4, random_array(2, 5, 33, dtype=dtype)
    assert_close(ops.swiglu(gate, up), oracle.silu(gate) * as_float64(up), rounding(dtype, 8), dtype=dtype)


def test_a_gate(ops, dtype):
    x, gate = random_array(1, 5, 33, dtype=dtype), random_array(2, 5, 33, dtype=dtype) * 4
    for each in (gate, gate[:, :1], gate):
        want = as_float64(x) / (1 + np.exp(-as_float64(each)))
        assert_close(ops.sigmoid_gate(x, each), want, rounding(dtype, 8), dtype=dtype)


def test_the_first_dimensions_of_normed_heads_are_rotated(ops, dtype):
    x, weight = random_array(1, 2, 3, 4, 24, dtype=dtype), random_array(2, 24, dtype=dtype)
    normed = oracle.rms_norm(x, weight, 1e-6)
    turned = oracle.rope(normed[..., :8], [5, 40], 1000, False)
    want = np.concatenate([turned, normed[..., 8:]], axis=-1).transpose(0, 2, 1, 3)
    got = ops.norm_rope(x, weight, 1e-6, RoPE(8, 64, base=1000), [5, 40])
    assert_close(got, want, rounding(dtype, 60 if dtype == mx.float32 else 8), dtype=dtype)


@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("offsets", [[0], [3], [0, 5, 400], [9, 9, 9]])
def test_every_row_is_rotated_from_its_own_offset(ops, dtype, offsets, length, traditional):
    rope = RoPE(24, 512, base=1000, traditional=traditional)
    x = random_array(1, len(offsets), length, 2, 24, dtype=dtype)
    want = oracle.rope(x, offsets, 1000, traditional).transpose(0, 2, 1, 3)
    # float32 angles of some hundred radians are right to 2e-5.
    tolerance = rounding(dtype, 400 if dtype == mx.float32 else 3)
    assert_close(ops.rotated(x, rope, offsets), want, tolerance, dtype=dtype)


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_scaled_frequencies_are_those_of_the_tables(ops, kind):
    scaling = RopeScaling(kind=kind, factor=4.0, original_max_position_embeddings=128)
    rope, x = RoPE(24, 512, base=1000, scaling=scaling), random_array(1, 2, 3, 2, 24)
    want = as_float64(rope(x, [5, 300])).transpose(0, 2, 1, 3)
    assert_close(ops.rotated(x, rope, [5, 300]), want, rounding(mx.float32, 400))


@pytest.mark.parametrize("offsets", [[0, 510], [-1, 0]])
def test_positions_that_the_table_does_not_have(ops, offsets):
    rope, w = RoPE(QWEN3.head_dim, 512), layer(QWEN3)[0]
    with pytest.raises(ValueError, match="positions must be 0 to 511"):
        ops.qkv_rope(mx.zeros((2, 3, QWEN3.hidden_size)), w, rope, offsets, 3)


def layer(config):
    weights = layer_weights(config, np.random.default_rng(1))
    return LayerWeights.of(config.rms_norm_eps, weights), weights


@pytest.mark.parametrize("config", [QWEN3, QWEN2], ids=["qwen3", "qwen2"])
@pytest.mark.parametrize("kept", [0, 1, 4])
def test_projected_normalised_and_rotated(ops, config, kept):
    w, named = layer(config)
    x, offsets = random_array(2, 3, 4, config.hidden_size), [0, 2, 70]
    rope = RoPE(config.head_dim, 512, config.rope_theta)
    got = ops.qkv_rope(x, w, rope, offsets, kept)
    normed = oracle.rms_norm(x, w.norm, w.eps)
    for out, name, norm in zip(got, "qkv", (w.query_norm, w.key_norm, None), strict=True):
        want = normed @ as_float64(named[f"self_attn.{name}_proj.weight"]).T
        if config.qkv_bias:
            want = want + as_float64(named[f"self_attn.{name}_proj.bias"])
        want = want.reshape(3, 4, -1, config.head_dim)
        want = want if norm is None else oracle.rms_norm(want, norm, w.eps)
        want = want if name == "v" else oracle.rope(want, offsets, config.rope_theta)
        want = want[:, 4 - kept :] if name == "q" else want
        assert_close(out, want.transpose(0, 2, 1, 3), rounding(mx.float32, 800), dtype=mx.float32, what=name)


def test_what_comes_behind_attention(ops):
    w, named = layer(QWEN3)
    x, attended = random_array(1, 3, 2, 64), random_array(2, 3, 2, 96)
    middle = as_float64(x) + as_float64(attended) @ as_float64(w.out).T
    normed = oracle.rms_norm(middle, w.mlp_norm, w.eps)
    gate, up, down = (as_float64(named[f"mlp.{part}_proj.weight"]) for part in ("gate", "up", "down"))
    want = middle + (oracle.silu(normed @ gate.T) * (normed @ up.T)) @ down.T
    assert_close(ops.attn_out_mlp(x, attended, w), want, rounding(mx.float32, 400), dtype=mx.float32)
    assert ops.attn_out_mlp(x[:0], attended[:0], w).shape == (0, 2, 64)
