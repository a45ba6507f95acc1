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


def is_count(value: object) -> bool:
    """Whether a number of characters, items or properties can be followed."""
    return type(value) in (int, float) and value in range(MOST_COUNT + 1)


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


def bound(value: object, is_lower: bool) -> int | float | None:
    """A bound for llguidance that lets nothing beyond `value` pass; None if there is none.

    One far below zero, or far above for an upper bound, is the last that llguidance has.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not value.is_integer():
        return value
    sign = 1 if is_lower else -1
    least = max(sign * int(value), -_LARGEST_INTEGER)
    if least > LARGEST:
        return None
    rounded = float(least)
    while int(rounded) < least:
        rounded = math.nextafter(rounded, math.inf)
    return sign * int(rounded)
