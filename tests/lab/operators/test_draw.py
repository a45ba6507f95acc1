"""Draws and scores of the `mlx` set against float64, and their graph, which does not grow with rows."""

import math

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.distributions import assert_follows
from tests.helpers.draws import DTYPES, MLX, check_draws, check_frequencies, check_scores, key_of, row_of
from tests.helpers.matrices import evaluated
from tests.helpers.tolerance import EXACT, Tolerance, as_float64, assert_close, peak_bytes
from tests.helpers.toy import random_array

from benchmarks.measurements.launches import launches
from tiny_llm_lab.types import DrawRow, LogitEdits, RowChanges, SamplingParams
from tiny_llm_lab.types.computing.noise import gumbel, mixed, subkeys, uniform

_LONG = pytest.mark.long
_SIZES = pytest.mark.parametrize(
    ("vocab_size", "first", "end"),
    [
        (7, 0, 40),
        (300, 0, 80),
        (2048, 0, 80),
        (151_936, 0, 5),
        (248_320, 7, 10),
        pytest.param(2048, 80, 600, marks=_LONG),
        pytest.param(151_936, 10, 90, marks=_LONG),
        pytest.param(248_320, 10, 90, marks=_LONG),
    ],
)


@_SIZES
def test_what_is_kept_and_drawn(ops, vocab_size, first, end):
    cases = range(first, end)
    assert check_draws(ops, MLX, vocab_size, cases) >= len(cases)


@_SIZES
def test_logprobs_and_the_likeliest(ops, vocab_size, first, end):
    check_scores(ops, vocab_size, range(first, end), in_order=False)


@pytest.mark.parametrize("num_draws", [1000, pytest.param(20_000, marks=_LONG)])
def test_frequencies(ops, num_draws):
    check_frequencies(ops, num_draws)


def test_each_row_is_drawn_and_scored_as_if_it_were_alone(ops):
    """Flat rows, ties, rows of -inf, nuclei above 1,024 tokens, in any company."""
    for dtype in DTYPES:
        parts = [row_of(i, 2500, dtype) for i in range(40)]
        (x,) = evaluated(mx.stack([logits for logits, _ in parts]))
        rows, tokens = [how for _, how in parts], mx.arange(40, dtype=mx.uint32)
        alone = [int(ops.draw(x[i : i + 1], rows[i : i + 1]).item()) for i in range(40)]
        scores = [
            [each.tolist() for each in ops.score(x[i : i + 1], tokens[i : i + 1], 5)] for i in range(40)
        ]
        rng = np.random.default_rng(1)
        for company in (np.arange(40), 39 - np.arange(40), *(rng.permutation(40)[:n] for n in (1, 2, 33))):
            places = mx.array(company)
            assert ops.draw(x[places], [rows[i] for i in company]).tolist() == [alone[i] for i in company]
            together = [each.tolist() for each in ops.score(x[places], tokens[places], 5)]
            assert together == [[scores[i][part][0] for i in company] for part in range(3)]


def test_the_graph_does_not_grow_with_rows(ops):
    """At most 60 launches of a GPU for everything that a request can ask for; greedy rows add one."""
    _, how = row_of(3, 300)
    assert how.changes.edits is not None
    mask = np.full(10, 0x0FFFFFFF, np.uint32)
    changes = RowChanges(how.changes.edits, mask)
    row = DrawRow(SamplingParams(temperature=0.7, top_k=20, top_p=0.8, min_p=0.01), 1, changes)
    counts = set()
    for num_rows in (1, 8, 64):
        logits, tokens = evaluated(mx.zeros((num_rows, 300), mx.bfloat16), mx.zeros(num_rows, mx.uint32))

        def step(x=logits, tokens=tokens):
            return [ops.draw(x, [row] * len(x)), *ops.score(x, tokens, 20)]

        counts.add(sum(launches(step).values()))
        greedy = launches(lambda x=logits: [ops.draw(x, [DrawRow(SamplingParams(), 1)] * len(x))])
        assert sum(greedy.values()) == 2, "the cast to float32, and the largest"
    assert len(counts) == 1 and max(counts) <= 60, f"launches for 1, 8 and 64 rows: {counts}"


def test_no_rows_are_no_tokens(ops):
    assert ops.draw(mx.zeros((0, 300)), []).shape == (0,)


def test_a_token_outside_the_vocabulary_is_not_edited(ops):
    edits = LogitEdits(np.array([3, 300], np.uint32), np.ones((2, 3), np.float32))
    with pytest.raises(ValueError, match="token 300 is outside a vocabulary of 300"):
        ops.draw(mx.zeros((1, 300)), [DrawRow(SamplingParams(), 1, RowChanges(edits))])


# Numbers of a hash: as even as random ones, unrelated to their neighbours, and the same for ever


_LAST = 2**64 - 1


def _numbers(keys, num=1):
    return np.array(uniform(keys, num)).astype(np.float64)


def _by_token(key, num):
    return _numbers([key], num)[0]


def _positions(seed, num):
    """Numbers of one token at the positions of a request."""
    return _numbers([(mixed(seed) + i) % 2**64 for i in range(num)])[:, 0]


_ROWS = {
    "tokens": lambda: _by_token(mixed(7), 1 << 16),
    "positions": lambda: _positions(7, 1 << 14),
    "seeds": lambda: _numbers([mixed(seed) for seed in range(1 << 14)])[:, 0],
    "keys that are not mixed": lambda: _numbers(list(range(1 << 14)))[:, 0],
}


@pytest.mark.parametrize("kind", _ROWS)
def test_numbers_are_even_and_unrelated_to_those_before(kind):
    numbers = _ROWS[kind]()
    assert_follows((numbers * 64).astype(int), np.full(64, 1 / 64), "64 equal parts")
    # The lower bits of the 24 that a float32 has.
    assert_follows((numbers * 2**20 % 1 * 16).astype(int), np.full(16, 1 / 16), "bits 21 to 24")
    for apart in (1, 2, 3, 7, 8, 64, 1024):
        pairs = (numbers[apart:] * 8).astype(int) * 8 + (numbers[:-apart] * 8).astype(int)
        assert_follows(pairs, np.full(64, 1 / 64), f"pairs of numbers {apart} apart")


def test_numbers_are_between_0_and_1():
    """2^-32 to 1 - 2^-24, so that their Gumbel numbers are finite."""
    assert _by_token(key_of(99), 100)[99] == 2.0**-32
    assert _by_token(key_of(99, 12345), 100)[99] == 2.0**-32
    largest = np.array(gumbel([key_of(99)], 100))[0, 99]
    assert abs(largest - 32 * np.log(2)) < 1e-5
    numbers = np.concatenate([_by_token(key, 1 << 18) for key in (0, 1, _LAST)])
    assert numbers.min() > 0 and numbers.max() <= 1 - 2.0**-24
    assert np.isfinite(np.array(gumbel([0, _LAST], 1 << 18))).all()


def test_they_are_what_they_were():
    """An answer for a seed changes with any of them."""
    # The first two are also what the authors of SplitMix64 print for the seed 0.
    assert [mixed(0), mixed(1)] == [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1]
    assert subkeys(0, 2) == [12035550249420947055, 3069472533636442495]
    got = _numbers([0, 1, _LAST], 248_320)[:, [0, 1, 151_935, 248_319]]
    assert (got * 2**32).tolist() == [
        [2539132928, 4263233280, 3970999040, 1363216384],
        [3423145472, 2625707520, 1183164544, 2824019968],
        [3477275648, 2786397440, 3516494592, 1764693888],
    ]


# What the `mlx` set stores: in dense rows and in blocks, in place


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
