"""Day 3.2: keys and values in blocks of 8 bits."""

import math
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.paging import Requests, packed_rows
from tests.helpers.tolerance import EXACT, F32, as_float64, assert_close, peak_bytes, rounding
from tests.helpers.toy import QWEN3, random_array, random_tokens, toy_model

from tiny_llm_lab.types import Slice, UserError

pytestmark = pytest.mark.task("3.2.5")

STEPS = [
    ([1], [1]),
    ([40, 7, 33, 32], [1, 1, 1, 1]),
    ([70, 31, 64, 9], [6, 1, 64, 1]),
]


def whole_numbers(x):
    """What `quantize_rows` says, in NumPy: numbers and scales, in float32."""
    x = np.array(x.astype(mx.float32))
    scales = np.max(np.abs(x), axis=-1, initial=0.0) / np.float32(127)
    divisors = np.where(scales > 0, scales, np.float32(1))[..., None]
    return np.rint(x / divisors), scales


def restored(x):
    """What the cache remembers of x, in float64."""
    numbers, scales = whole_numbers(x)
    return numbers.astype(np.float64) * scales[..., None]


def test_numbers_of_a_row(llm):
    x = mx.array([[1.27, -0.635, 0.014, 0.016, 0.0], [254.0, -254.0, 3.0, 5.0, 0.9], [0.0] * 5])
    numbers, scales = llm.quantize_rows(x)
    assert (numbers.dtype, scales.dtype) == (mx.int8, mx.float32)
    assert_close(scales, [0.01, 2.0, 0.0], rounding(mx.float32), what="max |x| / 127 of every row")
    want = [[127, -64, 1, 2, 0], [127, -127, 2, 2, 0], [0] * 5]
    assert abs(numbers[0, 1].item()) in (63, 64), "-63.5 lies between the two, but for the scale's rounding"
    numbers[0, 1] = -64
    assert numbers.tolist() == want, "rounded to the nearest; 1.5 and 2.5 lie halfway and go to the even 2"


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_every_row_has_a_scale_of_its_own(llm, dtype):
    # Rows a thousandfold apart: the scale of a block or of a tensor would leave nothing of the small ones.
    sizes = mx.power(10.0, mx.arange(5 * 3).reshape(5, 3, 1) % 4)
    x = (random_array(1, 5, 3, 24) * sizes).astype(dtype)
    numbers, scales = llm.quantize_rows(x)
    want, factors = whole_numbers(x)
    assert_close(scales, factors, EXACT, what="scales", legend="[T, G]")
    assert_close(numbers, want, EXACT, what="numbers", legend="[T, G, D]")
    back = llm.dequantize_rows(numbers, scales)
    off = np.abs(as_float64(back) - as_float64(x))
    # Half a step, and the float32 roundings of x / scale, which is at most 127, and of the product.
    assert np.all(off <= factors[..., None] * (0.5 + 2 * 127 * 2.0**-23)), "at most half a step"


def test_rows_come_back_in_the_dtype_asked_for(llm):
    numbers, scales = mx.array([[3, -127]], mx.int8), mx.array([0.1])
    for dtype in (mx.float32, mx.bfloat16):
        got = llm.dequantize_rows(numbers, scales, dtype)
        assert_close(got, [[0.3, -12.7]], rounding(dtype), dtype=dtype)


@pytest.mark.parametrize("size", [1e-45, 2.5e-43, 1e-38])
def test_numbers_never_pass_127(llm, size):
    # The scale of subnormal rows has few bits, so that x / scale may be far above 127.
    numbers, _ = llm.quantize_rows(mx.array([[size, -size, size / 3, 0.0]]))
    assert np.all(np.abs(as_float64(numbers)) <= 127)
    assert numbers[0, 0].item() >= 0 >= numbers[0, 1].item(), "178 as 8 bits would be -78"


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_what_is_no_number_stays_none(llm, bad):
    numbers, scales = llm.quantize_rows(mx.array([[1.0, bad, 0.0], [1.0, 2.0, 0.0]]))
    assert not math.isfinite(scales[0].item()), "an overflow must show"
    assert np.all(np.isfinite(as_float64(llm.dequantize_rows(numbers, scales))[1]))


def test_pools_of_8_bits(llm):
    config = replace(QWEN3, head_dim=64)
    cache = llm.PagedKvCache(config, 6, 16, mx.bfloat16, kv_bits=8)
    for pools, scales in ((cache.keys, cache.key_scales), (cache.values, cache.value_scales)):
        assert [(pool.shape, pool.dtype) for pool in pools] == [((6, 2, 16, 64), mx.int8)] * 2
        assert [(pool.shape, pool.dtype) for pool in scales] == [((6, 2, 16), mx.float32)] * 2
    rows = 2 * 2 * 6 * 2 * 16  # keys and values, layers, blocks, heads, tokens
    assert cache.nbytes == rows * (64 + 4), "a byte a number and a float a row; bfloat16 takes 128 a row"
    assert len(cache.pools) == 8, "all that a step has to compute: numbers and scales"
    cache.release()
    assert cache.nbytes == 0


def test_pools_of_the_models_dtype_have_no_scales(llm):
    cache = llm.PagedKvCache(QWEN3, 6, 16, mx.bfloat16)
    assert (cache.key_scales, cache.value_scales, len(cache.pools)) == ([], [], 4)
    assert cache.keys[0].dtype == mx.bfloat16


@pytest.mark.parametrize("bits", [0, 4, 16])
def test_bits_that_are_not_there(llm, bits):
    with pytest.raises(UserError):
        llm.PagedKvCache(QWEN3, 6, 16, kv_bits=bits)


class Step(Requests):
    """Requests with some tokens stored, a few more to come, in a cache of 8 bits; layer 1 of 2."""

    def __init__(self, llm, lengths, sizes, block_size=4, H=4, G=2, D=24, dtype=mx.float32):
        super().__init__(llm, lengths, sizes, block_size, H, G, D, dtype)
        self.llm, self.lengths, self.block_size = llm, lengths, block_size
        config = replace(QWEN3, num_attention_heads=H, num_key_value_heads=G, head_dim=D)
        self.cache = llm.PagedKvCache(config, len(self.keys), block_size, dtype, kv_bits=8)

    def attend(self, done, sizes, scale=None):
        """`sizes[r]` more tokens of each request behind `done[r]`: [T, 1, H * D]."""
        slices = [Slice(ids, at, new) for ids, at, new in zip(self.ids, done, sizes, strict=True) if new]
        upto = [at + new for at, new in zip(done, sizes, strict=True)]
        tensors = (
            packed_rows([t[:, :n] for t, n in zip(tokens, upto, strict=True)], sizes)
            for tokens in (self.q, self.k, self.v)
        )
        layer = self.cache.begin_step(self.llm.StepLayout.of(self.block_size, slices))[1]
        q, k, v = tensors
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        out = layer.attend(self.llm.ArrayOps(), q, k, v, scale)
        mx.eval(out, self.cache.pools)
        return out

    def run(self):
        done = [n - new for n, new in zip(self.lengths, self.sizes, strict=True)]
        if any(done):
            self.attend([0] * len(done), done)
        return self.attend(done, self.sizes)


@pytest.mark.parametrize("block_size", [1, 3, 16, 32, 64])
@pytest.mark.parametrize(("lengths", "sizes"), STEPS)
def test_attention_over_blocks_of_8_bits(llm, lengths, sizes, block_size):
    step = Step(llm, lengths, sizes, block_size)
    assert_close(step.run(), step.want(restored), F32, dtype=mx.float32, legend="[T, 1, H * D]")


@pytest.mark.parametrize(("H", "G", "D"), [(1, 1, 8), (6, 1, 64), (12, 3, 80)])
def test_attention_over_blocks_of_8_bits_of_groups(llm, H, G, D):
    step = Step(llm, [9, 70, 5], [1, 40, 1], 32, H=H, G=G, D=D)
    assert_close(step.run(), step.want(restored), F32, legend="[T, 1, H * D]")


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_attention_over_blocks_of_8_bits_in_16_bits(llm, dtype):
    step = Step(llm, [70, 31, 64, 9], [6, 1, 64, 1], 32, D=64, dtype=dtype)
    assert_close(step.run(), step.want(restored), rounding(dtype, 4), dtype=dtype, legend="[T, 1, H * D]")


def test_a_step_of_8_bits_changes_the_pools_in_place(llm):
    cache = llm.PagedKvCache(replace(QWEN3, head_dim=64), 1024, 32, kv_bits=8)
    q, k = random_array(1, 3, 4, 1, 64), random_array(2, 3, 2, 1, 64)
    mx.eval(q, k)

    def step(at):
        layers = cache.begin_step(llm.StepLayout.of(32, [Slice([9], at, 1), Slice([4], at, 2)]))
        mx.eval([layer.attend(llm.ArrayOps(), q, k, k, 0.125) for layer in layers], cache.pools)

    for at in range(3):
        assert peak_bytes(lambda at=at: step(at)) < cache.key_scales[0].nbytes / 2, (
            "a second pool was allocated"
        )


def test_a_model_remembers_8_bits(llm):
    model, tokens = toy_model(llm), random_tokens(3, 40)
    cache = model.create_paged_kv_cache(12, 4, kv_bits=8)
    assert cache.keys[0].dtype == mx.int8
    layout = llm.StepLayout.of(4, [Slice(range(10), 0, 40)])
    got = model(tokens[:, None], layout.positions, cache.begin_step(layout))[:, 0]
    want = as_float64(model(tokens[None])[0])
    off = np.abs(as_float64(got) - want)
    assert 0 < np.max(off) < 0.1 * np.std(want), "8 bits must show, and only a little"
