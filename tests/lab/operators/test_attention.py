"""Attention of the `mlx` set over dense rows and over blocks, against float64."""

import math
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import experts, oracle
from tests.helpers.matrices import numbers, packed, product
from tests.helpers.paging import STEPS, Requests
from tests.helpers.tolerance import EXACT, F32, Tolerance, as_float64, assert_close, rounding
from tests.helpers.toy import QWEN2, QWEN3, layer_weights, random_array

import tiny_llm_ref
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.types import LayerWeights, RopeScaling
from tiny_llm_ref.layers.positional_encoding import RoPE

LLM = TaskNames(tiny_llm_ref)


def heads_last(out):
    return out.transpose(0, 2, 1, 3).reshape(out.shape[0], out.shape[2], -1)


def qkv(B, H, G, L, S, D, dtype):
    shapes = ((B, H, L, D), (B, G, S, D), (B, G, S, D))
    return [random_array(seed, *shape, dtype=dtype) for seed, shape in enumerate(shapes)]


@pytest.mark.parametrize(("L", "S"), [(1, 1), (1, 33), (2, 7), (8, 8), (9, 40), (33, 64)])
@pytest.mark.parametrize(("H", "G", "D"), [(4, 2, 8), (3, 3, 24), (8, 1, 64), (14, 2, 80), (2, 1, 128)])
def test_the_last_token_sees_all_that_is_stored(ops, dtype, L, S, H, G, D):
    """Causal with more stored than new: the corner is the lower right one."""
    q, k, v = qkv(2, H, G, L, S, D, dtype)
    want = heads_last(oracle.attention(q, k, v, causal=True))
    assert_close(ops.attention(q, k, v, [S, S], D**-0.5), want, rounding(dtype, 6), dtype=dtype)


@pytest.mark.parametrize("L", [1, 3, 10])
@pytest.mark.parametrize("lengths", [[20, 20], [11, 30], [30, 12]])
def test_rows_of_different_lengths(ops, dtype, L, lengths):
    """What lies behind a row's end, here no number, does not reach its result."""
    q, k, v = qkv(2, 4, 2, L, 30, 16, dtype)
    for b, n in enumerate(lengths):
        k[b, :, n:] = v[b, :, n:] = math.nan
    want = [
        oracle.attention(q[b : b + 1], k[b : b + 1, :, :n], v[b : b + 1, :, :n], causal=True)
        for b, n in enumerate(lengths)
    ]
    got = ops.attention(q, k, v, lengths, 0.25)
    assert_close(got, heads_last(np.concatenate(want)), rounding(dtype, 6), dtype=dtype)


def test_a_step_uses_nothing_of_the_step_before(ops):
    """What the layers of a step share is made again for another step, of the same shapes too."""
    q, k, v = qkv(2, 4, 2, 3, 30, 16, mx.float32)
    for lengths in ([11, 30], [30, 12], [11, 30], [30, 30]):
        want = MlxOps(widens=True).attention(q, k, v, lengths, 0.25)
        assert mx.array_equal(ops.attention(q, k, v, lengths, 0.25), want), lengths


@pytest.mark.parametrize("block_size", [1, 3, 8, 16])
@pytest.mark.parametrize(("lengths", "sizes"), [*STEPS, ([9, 5, 17, 3, 20], [1, 2, 1, 1, 4])])
def test_pages(ops, dtype, lengths, sizes, block_size):
    """Decodes and chunks in any order; a pool is full of what is no number where no token is."""
    step = Requests(LLM, lengths, sizes, block_size, D=16, dtype=dtype)
    at = step.layout
    got = ops.paged_attention(
        step.new_q, step.keys, step.values, at.query_starts, at.lengths, at.block_tables, 0.25
    )
    assert_close(got, step.want(), rounding(dtype, 6), dtype=dtype)


def test_a_step_without_requests(ops):
    pool = mx.zeros((3, 2, 4, 8))
    got = ops.paged_attention(mx.zeros((0, 4, 1, 8)), pool, pool, [0], [], mx.zeros((0, 0), mx.int32), 0.25)
    assert got.shape == (0, 1, 32)


@pytest.mark.parametrize(("lengths", "sizes"), STEPS)
def test_pages_of_8_bits(ops, lengths, sizes):
    step = Requests(LLM, lengths, sizes, 4, D=16)
    at, pools, scales, wide = step.layout, [], [], []
    for pool in (step.keys, step.values):
        numbers, factors = ops.quantize_rows(mx.nan_to_num(pool))
        pools.append(numbers)
        scales.append(factors)
        wide.append(as_float64(numbers) * as_float64(factors)[..., None])
    got = ops.paged_attention(
        step.new_q, *pools, at.query_starts, at.lengths, at.block_tables, 0.25, (scales[0], scales[1])
    )
    want = []
    for r, ids in enumerate(step.ids):
        k, v = (np.concatenate(list(pool[ids]), axis=1)[None, :, : lengths[r]] for pool in wide)
        q = step.q[r][None, :, lengths[r] - sizes[r] :]
        want.append(heads_last(oracle.attention(q, k, v, causal=True))[0][:, None])
    assert_close(got, np.concatenate(want), F32)
    rounded = Tolerance(0, 0.1)  # two roundings to 127 steps of numbers up to three
    assert_close(got, step.want(), rounded, what="beside pages of 32 bits")


# Products, look-ups and experts of the `mlx` set, against float64


PACKINGS = [(bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
BITS = [2, 3, 4, 5, 6, 8]


def scaled(seed, rows, columns, dtype):
    """A matrix whose products with normal numbers have size one."""
    return (random_array(seed, rows, columns) / columns**0.5).astype(dtype)


@pytest.mark.parametrize("shape", [(1, 32), (2, 3, 32), (65, 32)])
def test_dense_products_with_and_without_a_bias(ops, dtype, shape):
    x, bias = random_array(1, *shape, dtype=dtype), random_array(2, 7, dtype=dtype)
    weights = [scaled(3, 7, 32, dtype), scaled(4, 7, 32, dtype), scaled(5, 3, 32, dtype)]
    got = ops.linear(x, weights, [bias, None, None])
    for out, w, addend in zip(got, weights, (bias, None, None), strict=True):
        assert_close(out, product(x, w, addend), rounding(dtype, 8), dtype=dtype)
    assert_close(ops.linear(x, weights[:1])[0], product(x, weights[0]), rounding(dtype, 8), dtype=dtype)


@pytest.mark.parametrize(("bits", "group"), PACKINGS)
def test_packed_products(ops, dtype, bits, group):
    for rows in (1, 2, 9, 65):
        x, w = (
            random_array(rows, rows, 3 * group, dtype=dtype),
            packed(bits, 13, 3 * group, bits, group, dtype),
        )
        w = replace(w, scales=w.scales / 16, biases=w.biases / 16)
        bias = random_array(5, 13, dtype=dtype)
        for addend in (None, bias):
            got = ops.linear(x, [w], [addend])[0]
            assert_close(
                got,
                product(x, w, addend),
                rounding(dtype, 12 if dtype != mx.float32 else 200),
                dtype=dtype,
                what=f"{rows} rows",
            )


def test_matrices_of_one_call_may_be_packed_differently(ops):
    x, weights = (
        random_array(1, 2, 5, 64),
        [packed(2, 6, 64, 4, 32), scaled(3, 5, 64, mx.float32), packed(4, 9, 64, 8)],
    )
    for out, w in zip(ops.linear(x, weights), weights, strict=True):
        assert_close(out, product(x, w), F32)


@pytest.mark.parametrize("shape", [(0, 64), (2, 0, 64)])
def test_a_product_of_no_rows(ops, dtype, shape):
    weights = [packed(1, 6, 64, dtype=dtype), scaled(2, 5, 64, dtype)]
    for out, size in zip(ops.linear(mx.zeros(shape, dtype), weights), (6, 5), strict=True):
        assert (out.shape, out.dtype) == ((*shape[:-1], size), dtype)


@pytest.mark.parametrize("shape", [(1,), (3, 2), (0, 1)])
def test_rows_of_a_table(ops, dtype, shape):
    tokens = mx.array(np.random.default_rng(1).integers(0, 11, shape).astype(np.int32))
    table = scaled(1, 11, 64, dtype)
    assert_close(ops.embedding(tokens, table), as_float64(table)[np.array(tokens)], EXACT, dtype=dtype)
    for bits in BITS:
        w = packed(2, 11, 64, bits, dtype=dtype)
        want = numbers(w)[np.array(tokens)]
        assert_close(ops.embedding(tokens, w), want, rounding(dtype, 8), dtype=dtype, what=f"{bits} bits")


@pytest.mark.parametrize("bits", [None, 4, 8])
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_experts(ops, bits, tokens):
    """40 tokens use experts so often that their rows are sorted."""
    config, weights = experts.MOE, experts.expert_weights(experts.MOE)
    used = weights if bits is None else experts.packed(weights, bits)
    x = random_array(3, tokens, config.hidden_size)
    found = [experts.routed(config, weights["gate.weight"], row) for row in as_float64(x)]
    chosen = mx.array(np.stack([each for each, _ in found]).astype(np.uint32))
    shares = mx.array(np.stack([each for _, each in found]).astype(np.float32))
    matrices = (used[f"switch_mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
    got = ops.expert_mlp(x, chosen, shares, *matrices)
    assert_close(got, experts.feed_forward(config, used, x), F32, dtype=mx.float32)


@pytest.mark.parametrize("is_normed", [True, False])
@pytest.mark.parametrize("count", [8, 130])
def test_the_experts_of_a_token(ops, dtype, is_normed, count):
    experts.assert_routed(ops.route, random_array(5, 9, count, dtype=dtype) * 3, 3, is_normed)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_experts_keep_the_dtype(ops, dtype):
    config, weights = experts.MOE, experts.in_dtype(experts.expert_weights(experts.MOE), mx.bfloat16)
    x = random_array(3, 5, config.hidden_size, dtype=dtype)
    chosen, shares = mx.array([[n, 3, 7] for n in (0, 1, 2, 4, 5)], mx.uint32), mx.full((5, 3), 1 / 3)
    matrices = [weights[f"switch_mlp.{part}_proj.weight"] for part in ("gate", "up", "down")]
    want = np.zeros((5, config.hidden_size))
    for row, numbers_of in enumerate(np.array(chosen)):
        for n in numbers_of:
            gate, up, down = (experts.wide(w)[n] for w in matrices)
            wide = as_float64(x)[row]
            want[row] += down @ (oracle.silu(gate @ wide) * (up @ wide)) / 3
    got = ops.expert_mlp(x, chosen, shares, *matrices)
    assert_close(got, want, rounding(dtype, 40), dtype=dtype)  # hidden numbers of size four


# Norms, rotation and the operators of a layer of the `mlx` set, against float64


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
    return LayerWeights.of(config, weights), weights


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
