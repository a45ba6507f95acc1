"""Day 2.5: FlashAttention with masks, groups and long rows."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import oracle
from tests.helpers.tolerance import EXACT, F32, Tolerance, as_float64, assert_close, peak_bytes, rounding
from tests.helpers.toy import random_array

from tiny_llm_lab.models.loading import load_checkpoint
from tiny_llm_lab.types import QuantizedWeights, UserError


def qkv(seed, B, H, G, L, S, D, dtype=mx.float32):
    shapes = [(B, H, L, D), (B, G, S, D), (B, G, S, D)]
    return [random_array(seed + i, *shape, dtype=dtype) for i, shape in enumerate(shapes)]


@pytest.mark.task("2.5.1")
@pytest.mark.parametrize(
    ("L", "S"),
    [(1, 1), (1, 65), (5, 5), (64, 64), (65, 65), (3, 64), (3, 130), (64, 200), (130, 130), (70, 129)],
)
def test_flash_attention_causal(llm, L, S):
    q, k, v = qkv(1, 1, 4, 2, L, S, 8)
    got = llm.flash_attention(q, k, v, mask="causal")
    assert_close(got, oracle.attention(q, k, v, causal=True), F32, dtype=mx.float32)
    want = mx.fast.scaled_dot_product_attention(q, k, v, scale=8**-0.5, mask="causal")
    assert_close(got, want, F32)


@pytest.mark.task("2.5.1")
@pytest.mark.parametrize(("H", "G"), [(1, 1), (4, 4), (4, 2), (6, 1), (12, 3)])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_flash_attention_of_groups(llm, H, G, mask):
    q, k, v = qkv(2, 2, H, G, 5, 70, 8)
    got = llm.flash_attention(q, k, v, mask=mask)
    assert_close(got, oracle.attention(q, k, v, causal=mask is not None), F32)
    assert_close(got, llm.scaled_dot_product_attention_grouped(q, k, v, mask=mask), F32)


@pytest.mark.task("2.5.1")
@pytest.mark.parametrize(
    "shape", [(5, 130), (1, 1, 5, 130), (2, 1, 5, 130), (2, 6, 5, 130), (1, 6, 1, 130), (130,)]
)
@pytest.mark.parametrize("kind", ["added", "boolean"])
def test_flash_attention_with_an_array_mask(llm, shape, kind):
    q, k, v = qkv(3, 2, 6, 3, 5, 130, 8)
    if kind == "added":
        mask = np.random.default_rng(4).normal(size=shape).astype(np.float32) * 3
    else:
        mask = np.random.default_rng(4).random(shape) < 0.3
        mask[..., 77] = True
    got = llm.flash_attention(q, k, v, mask=mx.array(mask))
    assert_close(got, oracle.attention(q, k, v, mask=mask), F32)


@pytest.mark.task("2.5.1")
@pytest.mark.parametrize("first_seen", [63, 64, 65, 128, 199])
@pytest.mark.parametrize("kind", ["added", "boolean"])
def test_flash_attention_of_rows_that_see_nothing_at_first(llm, first_seen, kind):
    q, k, v = qkv(5, 1, 4, 2, 3, 200, 8)
    visible = np.ones((3, 200), bool)
    visible[1, :first_seen] = False
    mask = mx.array(visible) if kind == "boolean" else mx.where(mx.array(visible), 0.0, -mx.inf)
    assert_close(llm.flash_attention(q, k, v, mask=mask), oracle.attention(q, k, v, mask=visible), F32)


@pytest.mark.task("2.5.1")
def test_flash_attention_of_rows_that_see_one_block_in_the_middle(llm):
    q, k, v = qkv(6, 2, 2, 1, 4, 200, 8)
    visible = np.zeros((2, 1, 4, 200), bool)
    for row in range(4):
        visible[:, :, row, 40 * row : 40 * row + 1 + row] = True
    got = llm.flash_attention(q, k, v, mask=mx.array(visible))
    assert_close(got, oracle.attention(q, k, v, mask=visible), F32)


@pytest.mark.task("2.5.1")
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("kind", ["causal", "added", "boolean"])
def test_flash_attention_of_16_bits_with_a_mask(llm, dtype, kind):
    q, k, v = qkv(7, 1, 4, 2, 9, 140, 16, dtype)
    visible = oracle.visible_causal(9, 140)
    added = mx.where(mx.array(visible), 0.0, -mx.inf).astype(dtype)
    mask = {"causal": "causal", "boolean": mx.array(visible), "added": added}[kind]
    got = llm.flash_attention(q, k, v, mask=mask)
    assert_close(got, oracle.attention(q, k, v, causal=True), rounding(dtype, 1), dtype=dtype)


@pytest.mark.task("2.5.1")
@pytest.mark.parametrize("mask", [None, "causal"])
def test_flash_attention_holds_a_block_of_scores_not_all(llm, mask):
    B, H, L, S = 1, 8, 128, 4096
    q, k, v = qkv(8, B, H, 2, L, S, 8)
    mx.eval(q, k, v)
    scores = B * H * L * S * 4
    assert peak_bytes(lambda: llm.flash_attention(q, k, v, mask=mask)) < scores / 4


@pytest.mark.task("2.5.1")
def test_flash_attention_of_a_long_row(llm):
    q, k, v = qkv(9, 1, 2, 1, 1, 5000, 16)
    visible = as_float64(random_array(12, 5000)) > 1.5
    got = llm.flash_attention(q, k, v, mask=mx.array(visible))
    assert_close(got, oracle.attention(q, k, v, mask=visible), F32)


@pytest.mark.task("2.5.1")
@pytest.mark.parametrize(("H", "G"), [(4, 3), (2, 4)])
def test_flash_attention_rejects_heads_that_do_not_divide(llm, H, G):
    q, k, v = qkv(10, 1, H, G, 2, 2, 8)
    with pytest.raises(ValueError):
        llm.flash_attention(q, k, v)


@pytest.mark.task("2.5.1")
@pytest.mark.parametrize("mask", ["", "Causal", "full"])
def test_flash_attention_rejects_masks_that_it_does_not_know(llm, mask):
    with pytest.raises(ValueError):
        llm.flash_attention(*qkv(23, 1, 2, 1, 2, 2, 8), mask=mask)


@pytest.mark.task("2.5.2")
@pytest.mark.parametrize(("L", "S"), [(1, 1), (1, 65), (5, 5), (3, 40), (9, 33)])
@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_flash_attention_metal(llm, metal, L, S, D, causal):
    q, k, v = qkv(11, 1, 4, 2, L, S, D)
    got = llm.flash_attention_metal(q, k, v, causal=causal)
    want = oracle.attention(q, k, v, causal=causal)
    assert_close(got, want, F32, legend="[B, H, L, D]", dtype=mx.float32)
    want = mx.fast.scaled_dot_product_attention(q, k, v, scale=D**-0.5, mask="causal" if causal else None)
    assert_close(got, want, F32, legend="[B, H, L, D]")


@pytest.mark.task("2.5.2")
@pytest.mark.parametrize(("H", "G"), [(1, 1), (4, 4), (4, 2), (6, 1), (12, 3)])
def test_flash_attention_metal_of_groups(llm, metal, H, G):
    q, k, v = qkv(12, 2, H, G, 3, 10, 64)
    got = llm.flash_attention_metal(q, k, v, causal=True)
    assert_close(got, oracle.attention(q, k, v, causal=True), F32, legend="[B, H, L, D]")


@pytest.mark.task("2.5.2")
@pytest.mark.parametrize("D", [4, 24, 80])
def test_flash_attention_metal_of_other_head_dims(llm, metal, D):
    q, k, v = qkv(13, 2, 4, 2, 2, 7, D)
    assert_close(llm.flash_attention_metal(q, k, v), oracle.attention(q, k, v), F32)


@pytest.mark.task("2.5.2")
def test_flash_attention_metal_of_few_numbers(llm, metal):
    # MLX passes arrays of fewer than 8 elements in another kind of memory.
    q, k, v = qkv(14, 1, 1, 1, 1, 1, 4)
    assert_close(llm.flash_attention_metal(q, k, v), v, F32)


@pytest.mark.task("2.5.2")
@pytest.mark.parametrize("scale", [1.5, 0.0])
def test_flash_attention_metal_takes_a_scale(llm, metal, scale):
    q, k, v = qkv(15, 1, 2, 1, 3, 20, 64)
    # Scores of a dozen units, of which exp makes a relative error.
    want = oracle.attention(q, k, v, scale=scale)
    assert_close(llm.flash_attention_metal(q, k, v, scale), want, rounding(mx.float32, 1000))


@pytest.mark.task("2.5.2")
@pytest.mark.parametrize("order", ["rising", "falling"])
def test_flash_attention_metal_when_the_maximum_moves(llm, metal, order):
    q, k, v = qkv(16, 1, 2, 2, 3, 40, 64)
    sizes = mx.repeat(mx.array([0.1, 1.0, 10.0, 60.0]), 10)[:, None]
    k = k * (sizes if order == "rising" else sizes[::-1])
    # Scores reach hundreds and lose as many units in the last place.
    assert_close(llm.flash_attention_metal(q, k, v), oracle.attention(q, k, v), rounding(mx.float32, 4000))


@pytest.mark.task("2.5.2")
@pytest.mark.parametrize("shift", [-300.0, 300.0])
def test_flash_attention_metal_does_not_overflow(llm, metal, shift):
    q, k, v = qkv(17, 1, 1, 1, 5, 30, 64)
    q[..., 0], k[..., 0] = 1.0, shift
    got = llm.flash_attention_metal(q, k, v, scale=1.0)
    assert_close(got, oracle.attention(q, k, v, scale=1.0), rounding(mx.float32, 3000))


@pytest.mark.task("2.5.2")
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_flash_attention_metal_of_16_bits_accumulates_in_32(llm, metal, dtype):
    q, k, v = qkv(18, 1, 2, 1, 3, 400, 64, dtype)
    v = v * 0.1 + 1
    got = llm.flash_attention_metal(q, k, v)
    # Only the result is rounded, and all results are positive: half a step is what that may cost.
    half_a_step = Tolerance(rounding(dtype, 0.51).rtol, 0.0)
    assert_close(got, oracle.attention(q, k, v), half_a_step, dtype=dtype)


@pytest.mark.task("2.5.2")
def test_flash_attention_metal_of_arrays_with_gaps(llm, metal):
    q, k, v = (random_array(19 + i, 2, 5, 4, 64).transpose(0, 2, 1, 3) for i in range(3))
    assert_close(llm.flash_attention_metal(q, k, v), oracle.attention(q, k, v), F32)


@pytest.mark.task("2.5.2")
def test_flash_attention_metal_builds_its_kernel_once(llm, metal, monkeypatch):
    built, make = [], mx.fast.metal_kernel
    monkeypatch.setattr(mx.fast, "metal_kernel", lambda **given: built.append(given) or make(**given))
    for length in (1, 2, 3):
        mx.eval(llm.flash_attention_metal(*qkv(20, 1, 2, 1, length, 3, 64)))
    # None, if an earlier call has built it.
    assert len(built) <= 1


@pytest.mark.task("2.5.2")
@pytest.mark.parametrize(
    ("H", "G", "L", "S", "causal"), [(4, 3, 2, 2, False), (2, 4, 2, 2, False), (2, 1, 3, 2, True)]
)
def test_flash_attention_metal_rejects_what_it_cannot_do(llm, metal, H, G, L, S, causal):
    with pytest.raises(UserError):
        llm.flash_attention_metal(*qkv(21, 1, H, G, L, S, 64), causal=causal)


@pytest.mark.task("2.5.2")
def test_flash_attention_metal_without_metal(llm, monkeypatch):
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    with pytest.raises(UserError):
        llm.flash_attention_metal(*qkv(22, 1, 2, 1, 2, 2, 64))


def attention_of(kernels, q, k, v, lengths, causal):
    return kernels.attention(q, k, v, lengths, causal, q.shape[-1] ** -0.5)


@pytest.mark.task("2.5.3")
@pytest.mark.parametrize(("L", "S"), [(1, 1), (1, 33), (5, 5), (3, 64), (9, 65), (50, 130)])
@pytest.mark.parametrize("D", [8, 64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_kernel(kernels, L, S, D, causal):
    q, k, v = qkv(30, 1, 4, 2, L, S, D)
    got = attention_of(kernels, q, k, v, S, causal)
    assert_close(got, oracle.attention(q, k, v, causal=causal), F32, legend="[B, H, L, D]", dtype=mx.float32)


@pytest.mark.task("2.5.3")
@pytest.mark.parametrize(("H", "G"), [(1, 1), (4, 4), (6, 1), (12, 3), (24, 1)])
def test_attention_kernel_of_groups(kernels, H, G):
    q, k, v = qkv(31, 2, H, G, 3, 40, 16)
    got = attention_of(kernels, q, k, v, 40, True)
    assert_close(got, oracle.attention(q, k, v, causal=True), F32, legend="[B, H, L, D]")


@pytest.mark.task("2.5.3")
def test_attention_kernel_reads_each_row_as_far_as_it_is_filled(kernels):
    q, k, v = qkv(32, 3, 4, 2, 2, 70, 16)
    lengths = [2, 33, 70]
    got = attention_of(kernels, q, k, v, lengths, True)
    for row, length in enumerate(lengths):
        own = slice(row, row + 1)
        want = oracle.attention(q[own], k[own, :, :length], v[own, :, :length], causal=True)
        assert_close(got[own], want, F32, what=f"row {row} of length {length}")


@pytest.mark.task("2.5.3")
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_attention_kernel_of_16_bits_accumulates_in_32(kernels, dtype):
    q, k, v = qkv(33, 1, 4, 2, 3, 300, 64, dtype)
    got = attention_of(kernels, q, k, v, 300, True)
    assert_close(got, oracle.attention(q, k, v, causal=True), rounding(dtype, 1), dtype=dtype)


@pytest.mark.task("2.5.4")
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 5, 64), (1, 1, 1024)])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_rms_norm_kernel(kernels, shape, dtype):
    x, w = random_array(40, *shape, dtype=dtype), random_array(41, shape[-1], dtype=dtype)
    _, got = kernels.rms_norm(x, w, 1e-6)
    assert_close(got, oracle.rms_norm(x, w, 1e-6), norm_tolerance(dtype), dtype=dtype)


@pytest.mark.task("2.5.4")
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_rms_norm_kernel_with_a_residual(kernels, dtype):
    # Sums that bfloat16 has to round: 256 + 0.6 to 1 unit of 2.
    x = (256 + random_array(42, 5, 70)).astype(dtype)
    delta, w = random_array(43, 5, 70, dtype=dtype), mx.ones(70, dtype)
    summed, got = kernels.rms_norm(x, w, 1e-6, delta)
    assert_close(summed, as_float64(x + delta), EXACT, dtype=dtype, what="the sum")
    assert_close(got, oracle.rms_norm(x + delta, w, 1e-6), norm_tolerance(dtype), dtype=dtype)
    # What is normalised is the rounded sum, which the next residual sees.
    assert_close(got, kernels.rms_norm(summed, w, 1e-6)[1], EXACT)


@pytest.mark.task("2.5.4")
def test_rms_norm_kernel_with_a_large_eps(kernels):
    x, w = random_array(44, 3, 33), random_array(45, 33)
    assert_close(kernels.rms_norm(x, w, 0.5)[1], oracle.rms_norm(x, w, 0.5), F32)


@pytest.mark.task("2.5.4")
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 5, 64), (300, 96)])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_swiglu_kernel(kernels, shape, dtype):
    gate, up = random_array(46, *shape, dtype=dtype), random_array(47, *shape, dtype=dtype)
    want = oracle.silu(gate) * as_float64(up)
    assert_close(kernels.swiglu(gate, up), want, norm_tolerance(dtype), dtype=dtype)


@pytest.mark.task("2.5.4")
def test_swiglu_kernel_of_large_gates(kernels):
    gate, up = mx.array([[-1000.0, -50.0, 50.0, 1000.0]]), mx.ones((1, 4))
    assert_close(kernels.swiglu(gate, up), [[0.0, 0.0, 50.0, 1000.0]], F32)


@pytest.mark.task("2.5.5")
@pytest.mark.parametrize("D", [2, 6, 16, 24, 64, 128])
@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("offsets", [[0, 0], [3, 17]])
def test_rope_kernel(kernels, D, traditional, offsets):
    x = random_array(48, 2, 5, 3, D)
    angles = np.arange(30)[:, None] * 10000.0 ** (-2 * np.arange(D // 2) / D)
    cos, sin = (mx.array(f(angles).astype(np.float32)) for f in (np.cos, np.sin))
    got = kernels.rope(x, offsets, cos, sin, traditional)
    want = oracle.rope(x, offsets, traditional=traditional)
    assert_close(got, want, F32, legend="[B, L, H, D]", dtype=mx.float32)


def layer_of(llm, name):
    """The first layer of a small random model, and its configuration."""
    checkpoint = load_checkpoint(name, dtype="float32")
    return llm.build_model(checkpoint).layers[0], checkpoint.config


@pytest.mark.task("2.5.6")
@pytest.mark.parametrize("keep", [None, 3, 1])
@pytest.mark.parametrize(
    "name", ["random:qwen3-shrunk", "random:qwen2.5-shrunk", "random:qwen3-shrunk,bits=4"]
)
def test_a_fused_layer_is_the_layer(llm, kernels, name, keep):
    layer, config = layer_of(llm, name)
    past, x = (random_array(seed, 1, length, config.hidden_size) for seed, length in ((1, 5), (2, 4)))
    plain, fused = llm.TinyKvFullCache(), llm.TinyKvFullCache()
    layer(past, 0, plain)
    llm.fused_layer(kernels, layer.parts, past, 0, fused)
    got = llm.fused_layer(kernels, layer.parts, x, 5, fused, keep)
    assert_close(got, layer(x, 5, plain, "causal", keep), F32, legend="[B, keep, E]", dtype=mx.float32)
    assert_close(fused.fetch()[0], plain.fetch()[0], F32, legend="[B, G, S, D]", dtype=mx.float32)


@pytest.mark.task("2.5.6")
@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_a_mask_means_the_same_with_and_without_kernels(llm, request, length, mask):
    layer, config = layer_of(llm, "random:qwen3-shrunk")
    x = random_array(3, 1, length, config.hidden_size)
    want = as_float64(layer(x, mask=mask))
    request.getfixturevalue("kernels_on")
    assert_close(layer(x, mask=mask), want, F32, legend="[B, L, E]")


@pytest.mark.task("2.5.6")
@pytest.mark.parametrize("is_on", [False, True])
def test_a_layer_rejects_masks_that_it_does_not_know(llm, request, is_on):
    layer, config = layer_of(llm, "random:qwen3-shrunk")
    if is_on:
        request.getfixturevalue("kernels_on")
    for length in (1, 5):
        with pytest.raises(ValueError):
            layer(random_array(3, 1, length, config.hidden_size), mask="full")


@pytest.mark.task("2.5.6")
def test_what_can_be_fused(llm):
    def weights(bits, group=64, **other):
        names = [f"self_attn.{n}_proj" for n in "qkvo"] + [f"mlp.{n}_proj" for n in ("gate", "up", "down")]
        kinds = dict.fromkeys(names, (bits, group))
        kinds |= {name.replace("__", "."): kind for name, kind in other.items()}
        blank = mx.zeros((1, 1))
        return {
            f"{name}.weight": QuantizedWeights(blank, blank, blank, kind[1], kind[0]) if kind[0] else blank
            for name, kind in kinds.items()
        }

    assert all(llm.can_fuse(weights(bits)) for bits in (0, 4, 8))
    assert not llm.can_fuse(weights(3)) and not llm.can_fuse(weights(4, 16))
    assert llm.can_fuse(weights(4, mlp__down_proj=(8, 32))), "down stands alone"
    assert not llm.can_fuse(weights(4, self_attn__v_proj=(8, 64))), "q, k and v come from one operator"
    assert not llm.can_fuse(weights(4, mlp__up_proj=(0, 64))), "so do gate and up"


def norm_tolerance(dtype):
    return F32 if dtype == mx.float32 else rounding(dtype, 1)
