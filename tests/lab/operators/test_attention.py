"""Attention of the `mlx` set over dense rows and over blocks, against float64."""

import math

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import oracle
from tests.helpers.paging import STEPS, Requests
from tests.helpers.tolerance import F32, Tolerance, as_float64, assert_close, rounding
from tests.helpers.toy import random_array

import tiny_llm_ref
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.runtime.task_names import TaskNames

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
