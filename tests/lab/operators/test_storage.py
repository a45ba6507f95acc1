"""What the `mlx` set stores: in dense rows and in blocks, in place."""

import math

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.tolerance import EXACT, Tolerance, as_float64, assert_close, peak_bytes
from tests.helpers.toy import random_array


@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("offsets", [[0, 5], [7, 2], [4, 4], [6]])
def test_tokens_go_behind_those_of_their_row(ops, dtype, offsets, new):
    stored = random_array(1, 3, 2, 10, 4, dtype=dtype)
    added = random_array(2, len(offsets), 2, new, 4, dtype=dtype)
    want = as_float64(stored)
    for b, first in enumerate(offsets):
        want[b, :, first : first + new] = as_float64(added)[b]
    assert_close(ops.append(stored, added, offsets), want, EXACT, dtype=dtype)


@pytest.mark.parametrize("used", [[], [0], [3], [3, 5, 1]])
def test_growing_keeps_what_is_stored(ops, dtype, used):
    stored = random_array(1, max(len(used), 1), 2, 6, 4, dtype=dtype)
    grown = ops.grow(stored, 5, 9, used)
    assert (grown.shape, grown.dtype) == ((5, 2, 9, 4), dtype)
    for row, num in enumerate(used):
        assert_close(grown[row, :, :num], as_float64(stored)[row, :, :num], EXACT)
    assert np.isfinite(as_float64(grown)).all(), "what no token has written is read, with weight 0"


@pytest.mark.parametrize("size", [1, 5, 16])
@pytest.mark.parametrize("dim", [(), (4,)])
def test_rows_go_to_their_slots(ops, dtype, size, dim):
    """Of pools of keys and of scales, which have no D."""
    pool = random_array(1, 7, 2, size, *dim, dtype=dtype)
    for seed in (1, 2):
        slots = np.random.default_rng(seed).permutation(7 * size)[:5]
        rows = random_array(seed, 5, 2, 1, *dim, dtype=dtype)
        want = as_float64(pool)
        for t, slot in enumerate(slots):
            want[slot // size, :, slot % size] = as_float64(rows)[t, :, 0]
        pool = ops.append_rows(pool, rows, mx.array(slots.astype(np.int32)))
        assert_close(pool, want, EXACT, dtype=dtype)


@pytest.mark.parametrize("kind", ["one offset", "offsets", "slots"])
def test_nothing_is_copied_to_store_a_token(ops, kind):
    """A pool of 8 MiB with one owner is written where it lies."""
    held = [mx.zeros((8, 2, 2048, 64))]
    mx.eval(held)

    def write():
        stored = held.pop()
        if kind == "slots":
            stored = ops.append_rows(stored, mx.ones((8, 2, 1, 64)), mx.arange(8, dtype=mx.int32) * 2049)
        else:
            num_rows = 1 if kind == "one offset" else 8
            stored = ops.append(stored, mx.ones((num_rows, 2, 1, 64)), list(range(num_rows)))
        mx.eval(stored)
        held.append(stored)

    assert peak_bytes(write) < held[0].nbytes / 8
    assert held[0].sum().item() == (1 if kind == "one offset" else 8) * 2 * 64


def test_rows_in_8_bits(ops, dtype):
    x = random_array(1, 3, 2, 1, 64, dtype=dtype)
    x[1] = 0
    numbers, scales = ops.quantize_rows(x)
    wide = as_float64(x)
    assert (numbers.dtype, scales.dtype, scales.shape) == (mx.int8, mx.float32, (3, 2, 1))
    want = np.abs(wide).max(axis=-1) / 127
    assert_close(scales, want, Tolerance(2.0**-22, 0))
    back = as_float64(numbers) * as_float64(scales)[..., None]
    assert_close(back, wide, Tolerance(0, float(want.max()) * 0.51))
    assert (np.array(numbers[1]) == 0).all() and np.abs(np.array(numbers)).max() == 127


def test_the_likeliest(ops, dtype):
    x = random_array(1, 3, 50, dtype=dtype)
    x[1, 7] = x[1, 40] = 9
    assert np.array(ops.argmax(x)).tolist() == as_float64(x).argmax(-1).tolist()
    x[2, 3] = math.inf
    assert ops.argmax(x)[2].item() == 3
