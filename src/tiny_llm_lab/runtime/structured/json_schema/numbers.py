"""Numbers of a schema, which llguidance keeps as doubles and 64-bit integers."""

import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Final

EXACT: Final = 2**53  # up to here a double has every integer
# Above these llguidance makes no expression for a range with one end, or overflows.
LARGEST: Final = 10**18 - 2**10
_LARGEST_INTEGER: Final = 2**63 - 2**10


MOST_DIGITS: Final = 8  # of a multipleOf
MOST_COUNT: Final = 10**6  # of characters, items, properties


def is_step(value: object) -> bool:
    """Whether a multipleOf can be followed at all; a large one may still cost too much."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        return False
    return len(Decimal(str(value)).normalize().as_tuple().digits) <= MOST_DIGITS and value < 2**32


def numbers_in(value: object) -> Iterator[int | float]:
    """All numbers in a JSON value."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from numbers_in(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def is_exact(number: int | float) -> bool:
    """Whether an answer that must have this number has all of its digits."""
    return abs(number) <= EXACT and (number == 0 or abs(number) >= 1e-20)


def lower(bound: int | float) -> int | float | None:
    """A bound for llguidance that lets nothing below `bound` pass; None if there is none.

    Far below zero it is the smallest that llguidance has, so that fewer numbers are allowed.
    """
    if isinstance(bound, float) and bound.is_integer():
        bound = int(bound)
    if isinstance(bound, float):
        return bound
    if bound > LARGEST:
        return None
    bound = max(bound, -_LARGEST_INTEGER)
    rounded = float(bound)
    while int(rounded) < bound:
        rounded = math.nextafter(rounded, math.inf)
    return int(rounded)


def upper(bound: int | float) -> int | float | None:
    """As `lower`, for an upper bound."""
    opposite = lower(-bound)
    return None if opposite is None else -opposite
