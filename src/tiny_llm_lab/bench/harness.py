"""Seconds of interleaved variants: each runs once a round, warm-ups are left out."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import mlx.core as mx

from tiny_llm_lab.interleave import interleave
from tiny_llm_lab.types import Clock

_SLOW_RUNS = 2


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
