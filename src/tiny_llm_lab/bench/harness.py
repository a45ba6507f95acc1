"""Interleaved measurement: every variant runs once a round, so that a slow phase of the machine meets all."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import mlx.core as mx

from tiny_llm_lab.types import Clock

T = TypeVar("T")
_SLOW_RUNS = 2


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


@dataclass(frozen=True)
class Variant:
    """One side of a comparison; the arrays that `run` returns are evaluated before its time ends."""

    name: str
    run: Callable[[], object]


def time_variants(
    variants: Sequence[Variant],
    rounds: int,
    *,
    warm_ups: int = 1,
    slow_s: float = math.inf,
    clock: Clock = time.perf_counter,
    synchronize: Callable[[], object] = mx.synchronize,
) -> dict[str, tuple[float, ...]]:
    """Seconds of every variant in every round, by name. Variants slower than `slow_s` run twice only.

    A warm-up counts when it is slower than `slow_s`. Raises ValueError when two variants share a name.
    """
    seconds: dict[str, list[float]] = {variant.name: [] for variant in variants}
    if len(seconds) < len(variants):
        raise ValueError("two variants have the same name")
    for number, variant in interleave(variants, rounds, warm_ups=warm_ups):
        own = seconds[variant.name]
        if len(own) >= _SLOW_RUNS and median(own) > slow_s:
            continue
        synchronize()
        start_s = clock()
        mx.eval(variant.run())
        synchronize()
        took_s = clock() - start_s
        if number >= 0 or took_s > slow_s:
            own.append(took_s)
    return {name: tuple(values) for name, values in seconds.items()}
