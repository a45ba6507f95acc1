"""Day 3.2: attention over pages."""

import math

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.paging import STEPS, Requests
from tests.helpers.tolerance import EXACT, F32, as_float64, assert_close, peak_bytes, rounding
from tests.helpers.toy import QWEN3, random_array

from tiny_llm_lab.types.computing.paged import Slice

pytestmark = pytest.mark.task("3.2.1")


@pytest.mark.parametrize("block_size", [1, 3, 16, 32, 64])
@pytest.mark.parametrize(("lengths", "sizes"), STEPS)
def test_attention_over_pages(llm, lengths, sizes, block_size):
    step = Requests(llm, lengths, sizes, block_size)
    got = llm.paged_attention(step.new_q, step.keys, step.values, *step.where)
    assert_close(got, step.want(), F32, dtype=mx.float32, legend="[T, 1, H * D]")


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_attention_over_pages_of_16_bits(llm, dtype):
    step = Requests(llm, [70, 31, 64, 9], [6, 1, 64, 1], dtype=dtype)
    got = llm.paged_attention(step.new_q, step.keys, step.values, *step.where)
    assert_close(got, step.want(), rounding(dtype, 4), dtype=dtype, legend="[T, 1, H * D]")


@pytest.mark.parametrize(("H", "G"), [(1, 1), (6, 1), (12, 3)])
def test_attention_over_pages_of_groups(llm, H, G):
    step = Requests(llm, [9, 20, 5], [1, 3, 1], H=H, G=G)
    got = llm.paged_attention(step.new_q, step.keys, step.values, *step.where)
    assert_close(got, step.want(), F32, legend="[T, 1, H * D]")


@pytest.mark.parametrize("scale", [1.5, 0.0])
def test_attention_over_pages_takes_a_scale(llm, scale):
    step = Requests(llm, [9, 20], [1, 3])
    got = llm.paged_attention(step.new_q, step.keys, step.values, *step.where, scale)
    step.q = [q * (scale * math.sqrt(8)) for q in step.q]
    # Scores of a dozen units, of which exp makes a relative error.
    assert_close(got, step.want(), rounding(mx.float32, 1000), legend="[T, 1, H * D]")


def layer_of(llm, step, block_size=4, num_layers=1):
    num_blocks, G, _, D = step.old_keys.shape
    config = QWEN3.__class__(**{**QWEN3.__dict__, "num_key_value_heads": G, "head_dim": D})
    cache = llm.PagedKvCache(config, num_blocks, block_size, step.old_keys.dtype)
    for pools, old in ((cache.keys, step.old_keys), (cache.values, step.old_values)):
        pools[1] = old * 1
    mx.eval(cache.keys, cache.values)
    return cache, cache.begin_step(step.layout)[1]


@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize(("lengths", "sizes"), STEPS)
def test_a_layer_stores_and_attends(llm, lengths, sizes, block_size):
    step = Requests(llm, lengths, sizes, block_size)
    cache, layer = layer_of(llm, step, block_size)
    got = layer.attend(llm.ArrayOps(), step.new_q, step.new_k, step.new_v, 8**-0.5)
    assert_close(got, step.want(), F32, dtype=mx.float32, legend="[T, 1, H * D]")
    for pool, want in ((cache.keys[1], step.keys), (cache.values[1], step.values)):
        same = np.nan_to_num(as_float64(pool), nan=99.0)
        assert_close(
            same, np.nan_to_num(as_float64(want), nan=99.0), EXACT, what="the pool: what is stored, and 99"
        )
    assert not np.any(as_float64(cache.keys[0])), "the other layer's pool was written"


def test_a_layer_stands_where_its_rows_stand(llm):
    cache = llm.PagedKvCache(QWEN3, 8, 4)
    layers = cache.begin_step(llm.StepLayout.of(4, [Slice([7, 2], 2, 5), Slice([5], 3, 1)]))
    assert [layer.offsets(6) for layer in layers] == [[2, 3, 4, 5, 6, 3]] * 2


def test_a_pool_may_keep_fewer_bits_than_the_model(llm):
    step = Requests(llm, [9, 20], [1, 3])
    cache = llm.PagedKvCache(QWEN3, len(step.keys), 4, mx.bfloat16)
    config_layer = cache.begin_step(step.layout)[0]
    k = random_array(5, 4, 2, 1, 24)
    out = config_layer.attend(llm.ArrayOps(), random_array(4, 4, 4, 1, 24), k, k, 1.0)
    assert out.dtype == mx.float32
    assert cache.keys[0].dtype == mx.bfloat16


def test_a_step_changes_the_pools_in_place(llm):
    config = QWEN3.__class__(**{**QWEN3.__dict__, "head_dim": 64})
    cache = llm.PagedKvCache(config, 1024, 32)
    size = cache.keys[0].nbytes
    q, k = random_array(1, 3, 4, 1, 64), random_array(2, 3, 2, 1, 64)
    mx.eval(q, k)

    def step(at):
        layout = llm.StepLayout.of(32, [Slice([9], at, 1), Slice([4], at, 2)])
        for layer in cache.begin_step(layout):
            mx.eval(layer.attend(llm.ArrayOps(), q, k, k, 1.0))

    for at in range(3):
        assert peak_bytes(lambda at=at: step(at)) < size / 4, "a step allocates a second pool"
