"""The order of an interleaved measurement, so that a slow phase of the machine affects every variant."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def interleave(
    variants: Sequence[T], rounds: int, *, warm_ups: int = 0, alternate: bool = True
) -> Iterator[tuple[int, T]]:
    """Yield (round, variant); rounds below 0 are warm-ups. With `alternate` odd rounds run backwards.

    `variants` is read again before every turn: a variant that was removed has no further turn.
    """
    for number in range(-warm_ups, rounds):
        order = list(variants)
        for variant in reversed(order) if alternate and number % 2 else order:
            if variant in variants:
                yield number, variant
