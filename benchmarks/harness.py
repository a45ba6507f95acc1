"""Times interleaved variants; each runs once a round, and warm-ups don't count."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import mlx.core as mx

from tiny_llm_lab.measure.bench.report import NO_AIM, TIME, Aim, Ratio, Row, Section
from tiny_llm_lab.runtime.interleave import interleave
from tiny_llm_lab.types import Clock

_SLOW_RUNS = 2


@dataclass(frozen=True)
class Variant:
    """One side of a comparison; the arrays that `run` returns are evaluated before its time ends."""

    name: str
    run: Callable[[], object]


@dataclass(frozen=True)
class Versus:
    """A ratio to report: its name, the names of the two variants, and its aim."""

    name: str
    over: str
    under: str
    aim: Aim = NO_AIM


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
        raise ValueError("two variants have the same name: rename one")
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


def timed_section(
    name: str,
    title: str,
    seconds: Mapping[str, Sequence[float]],
    ratios: Iterable[Versus],
    notes: Sequence[str] = (),
    **data: Any,
) -> Section:
    """A comparison of times, as `time_variants` returns them."""
    rows = [Row(variant, {TIME.key: values}) for variant, values in seconds.items()]
    found = [Ratio.of(each.name, seconds[each.over], seconds[each.under], each.aim) for each in ratios]
    return Section(name, title, (TIME,), rows, found, notes, data)
