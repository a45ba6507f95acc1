"""Taking turns: every side once a round, so that a slow minute of the machine meets them all."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import mlx.core as mx

from tiny_llm_lab.types import Clock

Seconds = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Side:
    """One side of a comparison; `run` returns when all its work is computed."""

    name: str
    run: Callable[[], object]


@dataclass(frozen=True)
class Ratio:
    """How one side compares with another: the ratio of medians, and the least and largest of a round."""

    name: str
    value: float
    low: float
    high: float
    at_most: float | None = None
    at_least: float | None = None

    @property
    def is_met(self) -> bool | None:
        """Whether the aim is met; None when there is none."""
        if self.at_most is None and self.at_least is None:
            return None
        is_low_enough = self.at_most is None or self.value <= self.at_most
        return is_low_enough and (self.at_least is None or self.value >= self.at_least)


def take_turns(
    sides: Sequence[Side],
    rounds: int,
    warm_ups: int = 1,
    clock: Clock = time.perf_counter,
    synchronize: Callable[[], object] = mx.synchronize,
) -> dict[str, tuple[float, ...]]:
    """Seconds of every side in each of `rounds` rounds, forwards, then backwards; warm-ups are left out."""
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    if len(seconds) < len(sides):
        raise ValueError("two sides have the same name")
    for number in range(-warm_ups, rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            synchronize()
            start_s = clock()
            side.run()
            synchronize()
            if number >= 0:
                seconds[side.name].append(clock() - start_s)
    return {name: tuple(values) for name, values in seconds.items()}


def ratio(
    name: str,
    over: Sequence[float],
    under: Sequence[float],
    at_most: float | None = None,
    at_least: float | None = None,
) -> Ratio:
    """`over` / `under`, both measured once in every round. The aim is `at_most` or `at_least`."""
    rounds = [a / b for a, b in zip(over, under, strict=True)]
    return Ratio(name, median(over) / median(under), min(rounds), max(rounds), at_most, at_least)


def times_row(name: str, seconds: Sequence[float]) -> tuple[str, ...]:
    """The cells of `TIME_COLUMNS`."""
    return (name, *(f"{value * 1e3:.3f}" for value in (median(seconds), min(seconds), max(seconds))))


TIME_COLUMNS = ("step", "ms median", "min", "max")
