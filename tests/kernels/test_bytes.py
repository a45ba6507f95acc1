"""Products whose x is rounded to bytes, by the definition; `product` rounds likewise, in NumPy.

test_linear.py has views, several products and extreme sizes, test_invariance.py company and threads.
"""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.matrices import assert_same_bits, numbers, of_bytes, packed, product
from tests.helpers.tolerance import EXACT, Tolerance, as_float64, assert_close
from tests.helpers.toy import random_array
from tests.kernels.conftest import DTYPES

from tiny_llm_lab.types import QuantizedWeights

# The special case of up to two rows, tiles of up to six with every rest, and more than a block of 512.
ROWS = [1, 2, 3, 9, 15, 519]
packings = pytest.mark.parametrize(("bits", "group"), [(b, group) for b in (4, 8) for group in (32, 64, 128)])


def check(got, x, w, what):
    """As exact as sums in float32 are: half a unit for each of the few that a group adds, 8 at the most.

    The unit is one of all that is added up: a field is up to twice its weight before its bias is added. A
    number of x that is rounded to its neighbour is off by far more.
    """
    fields = 2 * np.abs(numbers(w)).max(axis=-1)
    added = np.abs(of_bytes(x, w.group_size)).sum(axis=-1, keepdims=True) * fields
    want = product(x, w)
    wrong = np.abs(as_float64(got) - want) / (8 * 2.0**-24 * added)
    assert got.shape == want.shape
    assert wrong.max() <= 1, f"{what}: {wrong.max():.1f} of what is allowed, at {np.argwhere(wrong > 1)[:4]}"


def of_fields(fields, scales, biases, bits, group):
    """Weights whose packed whole numbers are `fields` [N, K]."""
    places = np.arange(32 // bits, dtype=np.uint32) * bits
    words = (fields.astype(np.uint32).reshape(len(fields), -1, 32 // bits) << places).sum(-1, dtype=np.uint32)
    return QuantizedWeights(
        mx.array(words), mx.array(scales), mx.array(biases), group, bits, activation_bits=8
    )


@pytest.mark.parametrize("scales", DTYPES, ids=str)
@packings
def test_nothing_but_the_rounding_is_lost(k, dtype, scales, bits, group):
    """One group, a few, and one more than a panel has; N of one lane, and of runs of items."""
    for groups, N, most in ((1, 1, 9), (5, 37, 519), (8192 // bits // group + 1, 17, 9), (3, 1100, 9)):
        K = groups * group
        w = packed(K, N, K, bits, group, scales, activation_bits=8)
        x = random_array(N, most, K, dtype=dtype)
        x[most - 1, -1] = 40  # makes its own group coarse, and no other
        x[:, :32] *= 1e-3
        wide = x.astype(mx.float32)
        for M in ROWS[: ROWS.index(most) + 1]:
            got = k.linear(wide[-M:], [w])[0]
            check(got, wide[-M:], w, f"M {M}, N {N}, K {K}")
            same = k.linear(x[-M:], [w])[0]
            assert same.dtype == dtype
            assert_same_bits(same, got.astype(dtype), f"M {M}, N {N}, K {K}, of {dtype}")


@pytest.mark.parametrize("scales", [mx.float32, mx.bfloat16], ids=str)
def test_more_groups_than_scales_fit_a_panel(k, scales):
    w = packed(1, 37, 513 * 32, 4, 32, scales, activation_bits=8)
    x = random_array(2, 3, 513 * 32)
    for M in (1, 3):
        check(k.linear(x[:M], [w])[0], x[:M], w, f"M {M}")


@packings
def test_whole_numbers_are_exact(k, bits, group):
    """Fields, x and the scales, powers of two, are random: in another's place, any of them shows."""
    rng = np.random.default_rng(group + bits)
    for N, M, groups in ((1, 2, 1), (67, 7, 3), (35, 3, 3)):
        x = rng.integers(-127, 128, (M, groups * group)).astype(np.float32)
        x[:, ::32] = 127 * rng.choice([-1, 1], x[:, ::32].shape)
        fields = rng.integers(0, 1 << bits, (N, groups * group))
        scales, biases = 2.0 ** rng.integers(0, 3, (N, groups)), rng.integers(-9, 10, (N, groups))
        w = of_fields(fields, scales.astype(np.float32), biases.astype(np.float32), bits, group)
        got = k.linear(mx.array(x), [w])[0]
        assert_close(got, x.astype(np.float64) @ numbers(w).T, EXACT, what=f"M {M}, N {N}", legend="[M, N]")


@packings
def test_the_largest_numbers_there_are(k, bits, group):
    """All products of a group are as large as they can be: where sums have 16 bits, they must do."""
    K, one, none = 3 * group, np.ones((5, 3), np.float32), np.zeros((5, 3), np.float32)
    signs = np.where(np.arange(K) % 2 == 0, 1, -1), np.where(np.arange(K) % 4 < 2, 1, -1), np.ones(K)
    largest = (1 << bits) - 1
    for sign in (*signs, *(-each for each in signs)):
        x = mx.array(np.tile(127.0 * sign, (9, 1)).astype(np.float32))
        for field in (np.full(K, largest), np.where(sign > 0, largest, 0)):
            w = of_fields(np.tile(field, (5, 1)), one, none, bits, group)
            for M in (1, 3, 9):
                want = np.full((M, 5), 127.0 * (sign * field).sum())
                assert_close(k.linear(x[:M], [w])[0], want, EXACT, what=f"M {M}, x {sign[:4]}")


def test_halves_go_to_the_even_number(k):
    """All halves from -126.5 to 126.5, each at many places of a group."""
    x = np.full((32, 10, 32), 127, np.float32)
    for row in range(32):
        x[row, :, 1:27] = np.resize(np.roll(np.arange(-126.5, 127), row), (10, 26))
    x = x.reshape(32, 320)
    fields = np.random.default_rng(1).integers(0, 16, (9, 320))
    w = of_fields(fields, *np.ones((2, 9, 10), np.float32), 4, 32)
    assert_close(k.linear(mx.array(x), [w])[0], np.rint(x) @ numbers(w).T, EXACT, what="sums of halves")


def test_a_scale_next_to_nothing_makes_zeros(k):
    """Its inverse would be infinite. The smallest normal scale still counts."""
    tiny, large = np.finfo(np.float32).tiny, np.full((5, 3), 2.0**90, np.float32)
    w = of_fields(np.ones((5, 96)), large, 0 * large, 4, 32)
    for size in (127 * tiny, 126.9 * tiny, tiny, 1e-44, 0):
        x = np.zeros((3, 96), np.float32)
        x[:, 32:64] = size
        want = np.full((3, 5), 32 * size * 2.0**90 if size == 127 * tiny else 0)
        assert_close(k.linear(mx.array(x), [w])[0], want, Tolerance(1e-6, 0), what=f"numbers of {size}")


@pytest.mark.parametrize("bits", [4, 8])
def test_what_is_no_number_changes_no_bit_of_other_rows(k, dtype, bits):
    w = packed(1, 37, 160, bits, 32, dtype, activation_bits=8)
    x = random_array(2, 9, 160, dtype=dtype)
    want = k.linear(x, [w])[0]
    mx.eval(want)
    for row, wrong in ((0, mx.nan), (4, mx.inf), (8, -mx.inf)):
        some = mx.array(x)
        some[row, 77] = wrong
        got = k.linear(some, [w])[0]
        others = mx.array([i for i in range(9) if i != row])
        assert_same_bits(got[others], want[others], f"beside {wrong}")
        assert not mx.isfinite(got[row]).any(), f"{wrong} makes no number"
