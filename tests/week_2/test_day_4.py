"""Day 2.4: attention one block of keys at a time."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import oracle
from tests.helpers.tolerance import EXACT, F32, assert_close, rounding
from tests.helpers.toy import random_array

# The task of each test that names no other.
pytestmark = pytest.mark.task("2.4.1")


def qkv(seed, B, H, L, S, D, dtype=mx.float32):
    shapes = [(B, H, L, D), (B, H, S, D), (B, H, S, D)]
    return [random_array(seed + i, *shape, dtype=dtype) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("S", [1, 63, 64, 65, 127, 128, 129, 200])
@pytest.mark.parametrize("L", [1, 5, 64, 65])
def test_flash_attention_around_block_edges(llm, L, S):
    q, k, v = qkv(1, 1, 2, L, S, 8)
    assert_close(llm.flash_attention(q, k, v), oracle.attention(q, k, v), F32, dtype=mx.float32)


@pytest.mark.parametrize(("B", "H", "D"), [(1, 1, 1), (3, 2, 7), (2, 5, 64)])
def test_flash_attention_shapes(llm, B, H, D):
    q, k, v = qkv(2, B, H, 9, 70, D)
    got = llm.flash_attention(q, k, v)
    assert_close(got, oracle.attention(q, k, v), F32, legend="[B, H, L, D]")
    want = mx.fast.scaled_dot_product_attention(q, k, v, scale=D**-0.5)
    assert_close(got, want, F32, legend="[B, H, L, D]")


def test_flash_attention_takes_a_scale(llm):
    q, k, v = qkv(3, 1, 2, 4, 130, 8)
    for scale in (1.5, 0.0):
        want = oracle.attention(q, k, v, scale=scale)
        assert_close(llm.flash_attention(q, k, v, scale), want, F32, what=f"scale {scale}")


@pytest.mark.parametrize("order", ["rising", "falling"])
def test_flash_attention_when_the_maximum_moves(llm, order):
    q, k, v = qkv(4, 1, 2, 6, 256, 8)
    sizes = mx.repeat(mx.array([0.1, 1.0, 10.0, 60.0]), 64)[:, None]
    k = k * (sizes if order == "rising" else sizes[::-1])
    # Scores reach hundreds and lose as many units in the last place.
    assert_close(llm.flash_attention(q, k, v), oracle.attention(q, k, v), rounding(mx.float32, 4000))


@pytest.mark.parametrize("shift", [-300.0, 300.0])
def test_flash_attention_does_not_overflow(llm, shift):
    # A constant column moves all scores of a row by `shift`: softmax is the same, exp(300) is not a number.
    q, k, v = qkv(5, 1, 1, 5, 100, 4)
    q[..., 0], k[..., 0] = 1.0, shift
    got = llm.flash_attention(q, k, v, scale=1.0)
    assert_close(got, oracle.attention(q, k, v, scale=1.0), rounding(mx.float32, 3000))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_flash_attention_over_many_blocks_of_16_bits(llm, dtype):
    # 150 blocks: each adds less to the running sums than a few units of their last place in 16 bits.
    q, k, v = qkv(7, 1, 2, 4, 9600, 8, dtype)
    v = v * 0.1 + 1
    got = llm.flash_attention(q, k, v)
    assert_close(got, oracle.attention(q, k, v), rounding(dtype, 0.5), dtype=dtype)


BLOCK, MOST_ROWS, LANES = 0, 1, 2


@pytest.fixture
def sizes(probe):
    out = np.zeros(3, np.int64)
    probe("attention").sizes(out)
    return out


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class Walk:
    """What the kernel keeps of some rows while blocks go by."""

    def __init__(self, sizes, seed, num_rows, stretches):
        self.padded = int(sizes[LANES]) * stretches
        self.query, self.out = normal(seed, num_rows, self.padded), normal(seed + 1, num_rows, self.padded)
        self.weights = np.zeros((num_rows, sizes[BLOCK]), np.float32)
        self.peak, self.total = np.full(num_rows, -np.inf, np.float32), np.zeros(num_rows, np.float32)

    def weigh(self, probe, key, visible, first=0, run=None):
        probe("attention").probe_weigh(
            *(self.query, key, self.out, self.peak, self.total, np.asarray(visible, np.int64), self.weights),
            *(len(self.query), first, self.padded, 0.125, run or len(key)),
        )

    def scores(self, key, visible, first=0):
        """The oracle's [rows, block], hidden ones as -inf."""
        place = first + np.arange(len(key))
        raw = self.query.astype(np.float64) @ key.astype(np.float64).T * 0.125
        return np.where(place[None, :] < np.asarray(visible)[:, None], raw, -np.inf)


@pytest.mark.task("2.4.2")
@pytest.mark.parametrize("num_rows", [1, 2, 3, 7, 24])
@pytest.mark.parametrize("stretches", [1, 2, 4])
@pytest.mark.parametrize(
    ("first", "run"),
    # Pages of day 3.2 end inside of a block: key.first says where in the block a run begins.
    [(0, None), (64, None), (0, 16)],
)
def test_weigh_the_first_block(probe, sizes, num_rows, stretches, first, run):
    walk = Walk(sizes, 20, num_rows, stretches)
    key = normal(22, sizes[BLOCK], walk.padded)
    visible = first + 1 + np.arange(num_rows) * 5 % sizes[BLOCK]
    walk.weigh(probe, key, visible, first, run=run)
    scores = walk.scores(key, visible, first)
    want = np.exp(scores - scores.max(1, keepdims=True))
    assert_close(walk.peak, scores.max(1), F32, legend="[rows]", what="the peak")
    what = f"the weights of a block in runs of {run or len(key)} tokens"
    assert_close(walk.weights, want, F32, legend="[rows, block]", what=what)
    assert_close(walk.total, want.sum(1), F32, legend="[rows]", what="the total")


@pytest.mark.task("2.4.2")
@pytest.mark.parametrize("peak", [-30.0, 0.0, 30.0])
def test_weigh_a_later_block(probe, sizes, peak):
    walk = Walk(sizes, 23, 5, 2)
    key, visible = normal(25, sizes[BLOCK], walk.padded), np.full(5, 1000)
    walk.peak[:], walk.total[:] = peak, 1.5
    out = walk.out.astype(np.float64)
    walk.weigh(probe, key, visible, 32)
    scores = walk.scores(key, visible, 32)
    new = np.maximum(scores.max(1), peak)
    shrink, weights = np.exp(peak - new), np.exp(scores - new[:, None])
    assert_close(walk.peak, new, F32, what="the peak")
    assert_close(walk.weights, weights, F32, what="the weights")
    assert_close(walk.total, 1.5 * shrink + weights.sum(1), F32, what="the total")
    assert_close(walk.out, out * shrink[:, None], F32, what="the output so far")


@pytest.mark.task("2.4.2")
def test_weigh_a_block_that_a_row_does_not_see(probe, sizes):
    walk = Walk(sizes, 26, 4, 1)
    walk.peak[:], walk.total[:] = 2.0, 3.0
    out = walk.out.copy()
    walk.weigh(probe, normal(28, sizes[BLOCK], walk.padded), [1, 31, 63, 64], 64)
    assert_close(walk.weights, np.zeros_like(walk.weights), EXACT, what="the weights")
    assert_close(walk.total, np.full(4, 3.0), EXACT, what="the total")
    assert_close(walk.out, out, EXACT, what="the output so far")


@pytest.mark.task("2.4.3")
@pytest.mark.parametrize(
    ("num_rows", "stretches", "run"),
    # Pages of day 3.2 end inside of a block: value.first says where in the block a run begins.
    [(5, 1, 4), (5, 1, 16), *((rows, each, None) for rows in (1, 2, 3, 4, 8, 24) for each in (1, 2, 4))],
)
def test_gather_adds_weighted_values(probe, sizes, num_rows, stretches, run):
    padded, block = int(sizes[LANES]) * stretches, int(sizes[BLOCK])
    weights = np.abs(normal(30, num_rows, block)) / 8
    value, out = normal(31, block, padded), normal(32, num_rows, padded)
    want = out + weights.astype(np.float64) @ value
    probe("attention").probe_gather(weights, value, out, num_rows, padded, run or block)
    assert_close(out, want, F32, legend="[rows, D]", what=f"a block in runs of {run or block} tokens")
