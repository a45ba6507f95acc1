"""Day 1.2: rotary positions."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import oracle
from tests.helpers.tolerance import (
    EXACT,
    F32,
    Tolerance,
    active_bytes,
    as_float64,
    assert_close,
    peak_bytes,
    rounding,
)
from tests.helpers.toy import random_array

from tiny_llm_lab.types import RopeScaling

pytestmark = pytest.mark.task("1.2.1")

# The angle of position p is known to p * 2^-24 radians in float32, in any order of the factors.
ANGLES = Tolerance(2e-4, 2e-4)


@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize(
    ("L", "D", "offsets"),
    [(1, 2, [0, 0]), (5, 8, [0]), (7, 6, [3, 3]), (3, 24, [20]), (1, 8, [3, 0, 17]), (4, 8, [3, 0, 17])],
)
def test_rope(llm, traditional, L, D, offsets):
    x = random_array(1, len(offsets), L, 3, D)
    rope = llm.RoPE(D, 32, traditional=traditional)
    want = oracle.rope(x, offsets, traditional=traditional)
    assert_close(rope(x, offsets), want, F32, legend="[B, L, H, D]", dtype=mx.float32)


@pytest.mark.parametrize("offsets", [[], [1, 2], [1, 2, 3, 4], [1], [-1, 0, 0], [0, 7, 0]])
def test_rope_rejects_offsets_that_do_not_fit(llm, offsets):
    with pytest.raises(ValueError):
        llm.RoPE(4, 8)(mx.ones((3, 2, 1, 4)), offsets)


@pytest.mark.parametrize("offsets", [[0, 700], [700, 0]], ids=["last-row-ahead", "first-row-ahead"])
def test_rope_knows_the_positions_of_the_row_that_is_furthest(llm, offsets):
    rope, x = llm.RoPE(8, 704), random_array(14, 2, 4, 1, 8)
    assert_close(rope(x, offsets), oracle.rope(x, offsets), ANGLES, legend="[B, L, H, D]")
    for outside in (offsets[0] or -1, offsets[1] or -1), [offset + bool(offset) for offset in offsets]:
        with pytest.raises(ValueError):
            rope(x, list(outside))


def test_rope_pairs_halves_unless_traditional(llm):
    x = mx.array([1.0, 0.0, 0.0, 0.0]).reshape(1, 1, 1, 4)
    assert_close(llm.RoPE(4, 8)(x, [1])[0, 0, 0, 1], 0.0, what="dimension 1, paired with 3")
    traditional = llm.RoPE(4, 8, traditional=True)(x, [1])
    assert_close(traditional[0, 0, 0, 2], 0.0, what="dimension 2, paired with 3 when traditional")
    assert abs(as_float64(traditional)[0, 0, 0, 1]) > 0.5


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_rope_turns_16_bits_in_32(llm, dtype):
    x = random_array(8, 1, 4, 2, 16, dtype=dtype)
    # Position 1001 is 1000 in bfloat16, so angles in 16 bits would be off by a radian.
    got = llm.RoPE(16, 1024)(x, [1000])
    # Only the result is rounded.
    assert_close(got, oracle.rope(x, [1000]), rounding(dtype, 1), dtype=dtype)


@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_rope_of_16_bits_is_rounded_once(llm, dtype, traditional):
    x = random_array(10, 2, 6, 3, 16, dtype=dtype)
    once = Tolerance(rounding(dtype, 0.51).rtol, 1e-5)
    got = llm.RoPE(16, 32, traditional=traditional)(x, [4, 4])
    assert_close(got, oracle.rope(x, [4, 4], traditional=traditional), once)


@pytest.mark.parametrize("traditional", [False, True])
def test_rope_of_a_checkpoint_that_stretches_its_positions(llm, traditional):
    x, scaling = random_array(13, 1, 3, 2, 8), RopeScaling("linear", 4.0, 16, magnitude=1.5)
    rope = llm.RoPE(8, 64, traditional=traditional, scaling=scaling)
    plain = llm.RoPE(8, 64, traditional=traditional)
    # Four times as slow: position 40 is what position 10 was.
    want = 1.5 * oracle.rope(x[:, :1], [10], traditional=traditional)
    assert_close(rope(x[:, :1], [40]), want, ANGLES)
    assert (rope.magnitude, plain.magnitude) == (1.5, 1.0)
    assert (rope.base, plain.base) == (None, 10000)
    assert_close(rope.periods, 4 * plain.periods)
    assert_close(plain.periods, 10000.0 ** (np.arange(4) / 4))
    assert rope.periods.dtype == mx.float32
    assert_close(rope.tables(5)[0][4], 1.5 * plain.tables(2)[0][1])


def test_rope_rejects_an_odd_dimension(llm):
    with pytest.raises(ValueError):
        llm.RoPE(7, 16)


def test_rope_computes_what_is_served_and_not_all_that_could_be(llm):
    """A model may know a million positions: tables of all of them would be 493 MiB with 128 dimensions."""
    before, x = active_bytes(), random_array(11, 1, 100, 2, 128)
    mx.eval(x)
    rope = llm.RoPE(128, 1_010_000)
    assert peak_bytes(lambda: rope(x, [900])) < 4 * 2**20, "for the positions up to 1,000"
    assert active_bytes() - before < 4 * 2**20


@pytest.mark.parametrize("seq_len", [8, 300, 5000])
@pytest.mark.parametrize("dims", [6, 16, 128])
def test_rope_is_the_same_whatever_was_served_before(llm, seq_len, dims):
    x = random_array(12, 1, 1, 2, dims)
    grown, fresh = llm.RoPE(dims, seq_len), llm.RoPE(dims, seq_len)
    last = fresh(x, [seq_len - 1])
    for position in [*range(0, seq_len, max(1, seq_len // 9)), seq_len - 1]:
        cos, sin = grown.tables(position + 1)
        assert cos.shape == sin.shape and cos.shape[0] >= position + 1 and cos.shape[1] == dims // 2
        assert_close(grown(x, [position]), fresh(x, [position]), EXACT, what=f"position {position}")
    assert_close(grown(x, [seq_len - 1]), last, EXACT)
    with pytest.raises(ValueError):
        grown.tables(seq_len + 1)
