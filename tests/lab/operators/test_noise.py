"""Numbers of a hash: as even as random ones, unrelated to their neighbours, and the same for ever."""

import numpy as np
import pytest
from tests.helpers.distributions import assert_follows
from tests.helpers.draws import key_of

from tiny_llm_lab.types import gumbel, mixed, subkeys, uniform

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


def test_requests_and_tokens_are_unrelated():
    """The same tokens of neighbouring positions, and the same positions of neighbouring seeds."""
    rows = np.stack([_by_token((mixed(3) + i) % 2**64, 1 << 14) for i in range(4)])
    rows = np.concatenate([rows, np.stack([_by_token(mixed(seed), 1 << 14) for seed in range(4, 8)])])
    for one in range(8):
        for other in range(one):
            pairs = (rows[one] * 8).astype(int) * 8 + (rows[other] * 8).astype(int)
            assert_follows(pairs, np.full(64, 1 / 64), f"rows {one} and {other}")


def test_a_key_has_words_that_both_count():
    """Keys that share a word of their mixed form draw other numbers."""
    low, high = key_of(5, 1), key_of(5, 2)
    assert mixed(low) >> 32 == 1 and mixed(high) >> 32 == 2
    assert abs(np.corrcoef(_by_token(low, 1 << 14), _by_token(high, 1 << 14))[0, 1]) < 5 / 2**7


def test_subkeys_are_no_keys_of_positions():
    first = mixed(0)
    positions = {(first + i) % 2**64 for i in range(10_000)}
    found = [each for key in sorted(positions)[:500] for each in subkeys(key, 3)]
    assert len({*found}) == 1500 and not {*found} & positions
    assert_follows((_numbers(found)[:, 0] * 8).astype(int), np.full(8, 1 / 8), "numbers of subkeys")


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
