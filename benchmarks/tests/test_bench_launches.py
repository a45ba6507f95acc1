"""How many operators a step starts, and what memory a chunk takes, compared with mlx-lm, on any machine."""

from functools import cache

import mlx.core as mx
import pytest

from benchmarks.measurements.launch_table import MODELS, OWN_KERNEL, counted, steps_of
from benchmarks.measurements.launches import launches
from benchmarks.measurements.prefill_memory import NAMES, memory_of
from tiny_llm_lab import load_checkpoint

DECODES, MIXED, CHUNK = "engine: 8 decodes", "engine: 8 decodes and a chunk", "engine: chunk"
counts = cache(counted)
# A layer's norms, products, rotations, attention, two writes, two sums and SwiGLU; MLX adds biases to packed
# products by an operator of their own.
A_LAYER = {("qwen2.5", 16): 17, ("qwen2.5", 4): 20, ("qwen3", 16): 19, ("qwen3", 4): 19}


def test_views_are_no_launches():
    x, y = mx.zeros((2, 3, 4)), mx.ones((4,))
    mx.eval(x, y)
    assert launches(lambda: [(x.transpose(1, 0, 2)[:1] + y).reshape(-1)]) == {"Add": 1}
    assert launches(lambda: [mx.fast.rms_norm(x, y, 1e-6)]) == {"RMSNorm": 1}
    assert launches(
        lambda: [mx.fast.rope(x, 4, traditional=False, base=1e4, scale=1.0, offset=mx.exp(y))]
    ) == {"RoPE": 1, "Exp": 1}


@pytest.mark.parametrize(("base", "bits"), MODELS)
def test_no_launch_more_than_mlx_lm(base, bits):
    ours, theirs = counts("mlx", base, bits), counts("mlx-lm", base, bits)
    assert ours["1 decode"][0] == theirs["1 decode"][0] == A_LAYER[base, bits]
    for step in ("1 decode", "8 decodes", "chunk", OWN_KERNEL, MIXED):
        assert ours[step][0] <= theirs[step][0], f"{step}: in a layer"
        assert ours[step][1] <= theirs[step][1], f"{step}: else"


@pytest.mark.parametrize(("base", "bits"), MODELS)
def test_what_pages_cost_without_a_kernel(base, bits):
    """Two gathers a layer for all decodes and for each chunk, a mask, and the rows that are sampled."""
    ours = counts("mlx", base, bits)
    layer, rest = ours[OWN_KERNEL]
    assert ours[DECODES] == (layer + 2, rest + 2)
    assert ours[CHUNK] == (layer + 2, rest + 2)
    assert ours[MIXED] == (layer + 2 + 4, rest + 4), "two segments: attention and gathers twice, joined"


@pytest.mark.parametrize(("base", "bits"), MODELS)
def test_plain_arrays_start_more_than_twice_as_many(base, bits):
    before, now = counts("off", base, bits), counts("mlx", base, bits)
    assert set(before) == set(now) - {OWN_KERNEL}
    assert all(before[step][0] > 2.5 * now[step][0] for step in before)


@pytest.mark.parametrize("bits", [16, 4])
@pytest.mark.parametrize("base", ["qwen2.5", "qwen3"])
def test_nothing_is_cast(base, bits):
    """A model of 16 bits on a GPU computes in 16: an array of 32 would double what the next ones move."""
    checkpoint = load_checkpoint(f"random:{base}-shrunk,bits={bits},layers=2", dtype="bfloat16")
    for step, make in steps_of("mlx", checkpoint).items():
        casts = [name for name in launches(make) if "AsType" in name]
        assert not casts, step
        assert all(out.dtype == mx.bfloat16 for out in make()), step


def test_experts_cast_their_shares_only():
    """Of every layer the router's scores become float32, for the softmax, and the shares 16 bits again."""
    checkpoint = load_checkpoint("random:qwen3-moe-shrunk,bits=4,layers=2", dtype="bfloat16")
    for step, make in steps_of("mlx", checkpoint).items():
        assert launches(make)["AsType"] == 2 * 2, step


@pytest.fixture(scope="module")
def long_checkpoint():
    return load_checkpoint("random:qwen3-shrunk,layers=2,positions=8192", dtype="float32")


@pytest.mark.parametrize("is_fused", [False, True])
def test_a_chunk_takes_no_more_than_in_mlx_lm(long_checkpoint, is_fused):
    off, mlx, mlx_lm = (
        memory_of(name, long_checkpoint, 2048, 128, 128, is_fused).peak_bytes for name in NAMES
    )
    assert mlx <= 1.05 * mlx_lm
    assert off > 1.5 * mlx_lm, "the bound is one that plain arrays break"


def test_attention_takes_nothing_that_grows_with_what_is_stored(long_checkpoint):
    def peaks(name):
        return [memory_of(name, long_checkpoint, n, 128, 128, True).peak_bytes for n in (1024, 4096)]

    short, long = peaks("mlx")
    assert long <= 1.05 * short
    short, long = peaks("off")
    assert long > 3 * short, "the bound is one that plain arrays break"
