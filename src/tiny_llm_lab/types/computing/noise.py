"""Random numbers that depend on a key and a token and on nothing else: no generator, and no order of calls.

A key is a whole number, 0 to 2**64 - 1, for one position of one request. The operators of every device make
the same bits of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import mlx.core as mx

if TYPE_CHECKING:  # the program's list of commands is printed without NumPy
    import numpy as np

_RANGE: Final = 2**64
# Added to a key before it is mixed: 2^64 divided by the golden ratio, as in SplitMix64.
_STEP: Final = 0x9E3779B97F4A7C15
# A step between tokens, and factors that let each bit of a number change about half of the others.
_TOKEN_STEP: Final = 0x9E3779B9
_ROUNDS: Final = ((0x21F0AAAD, 0x735A2D97), (0x85EBCA6B, 0xC2B2AE35))
_LARGEST: Final = 1 - 2**-24  # the largest float32 below 1


def mixed(value: int) -> int:
    """Returns 64 bits without visible relation to `value` (SplitMix64), which differ for different values."""
    value = (value + _STEP) % _RANGE
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = (value ^ value >> shift) * factor % _RANGE
    return value ^ value >> 31


def subkeys(key: int, count: int) -> list[int]:
    """Returns `count` keys of a position that has several draws. None of them is the key of a position."""
    return [mixed(mixed(key) + i) for i in range(count)]


def key_words(keys: Sequence[int]) -> np.ndarray:
    """Returns the mixed keys as two words each, [n, 2] uint32, the lower word first."""
    import numpy as np

    whole = np.array([mixed(key) for key in keys], np.uint64)
    return np.stack([whole & np.uint64(0xFFFFFFFF), whole >> np.uint64(32)], axis=-1).astype(np.uint32)


def uniform(keys: Sequence[int], vocab_size: int = 1) -> mx.array:
    """Returns a number for each key and token, as likely anywhere between 0 and 1: [n, V] float32.

    Neither 0 nor 1 occurs.
    """
    words = mx.array(key_words(keys))
    return uniform_of_words(words[:, :1], words[:, 1:], mx.arange(vocab_size, dtype=mx.uint32))


def gumbel(keys: Sequence[int], vocab_size: int) -> mx.array:
    """Returns a number of the Gumbel distribution for each key and token: [n, V] float32.

    Added to the scores of n rows, the place of each row's largest sum is a draw from the row's softmax.
    """
    return gumbel_of_uniform(uniform(keys, vocab_size))


def gumbel_of_uniform(numbers: mx.array) -> mx.array:
    """Numbers between 0 and 1 -> numbers of the Gumbel distribution, the largest for the smallest."""
    return -mx.log(-mx.log1p(-numbers))


def uniform_of_words(low: mx.array, high: mx.array, tokens: mx.array) -> mx.array:
    """The numbers of `uniform` [n, V], for the words [n, 1] of mixed keys and tokens [V], all of uint32."""
    x = tokens * mx.array(_TOKEN_STEP, mx.uint32) + low
    for i, (first, second) in enumerate(_ROUNDS):
        x = (x ^ x >> 16) * mx.array(first, mx.uint32)
        x = (x ^ x >> 15) * mx.array(second, mx.uint32)
        x = x ^ x >> 16 ^ (high if i == 0 else mx.array(0, mx.uint32))
    return mx.minimum(((x >> 1).astype(mx.float32) + 0.5) * 2.0**-31, _LARGEST)
