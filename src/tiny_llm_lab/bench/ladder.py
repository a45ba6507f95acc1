"""The arithmetic of a ladder: what an operator must cost, what its versions took, and how that reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

import mlx.core as mx

from tiny_llm_lab import native
from tiny_llm_lab.course.todo import find_todo

# A version this slow is repeated less often: its spread is small anyway.
_SLOW_S, _SLOW_RUNS = 0.3, 2


class HasLimits(Protocol):
    """What a ladder needs of native.limits.Limits."""

    @property
    def read_gb_s(self) -> float: ...
    @property
    def f32_gflop_s(self) -> float: ...


@dataclass(frozen=True)
class Cost:
    """What any version has to move and to compute; `allows_integers` if that may be done without float32."""

    num_bytes: float
    flops: float
    allows_integers: bool = False


@dataclass(frozen=True)
class Rung:
    """One version: `run(i)` computes with the i-th copy of its weights and returns a lazy result."""

    name: str
    run: Callable[[int], mx.array]


@dataclass(frozen=True)
class Times:
    """Seconds of a version's runs; none when it is not written yet, which `todo` says."""

    name: str
    seconds: tuple[float, ...]
    todo: str = ""


@dataclass(frozen=True)
class Ladder:
    """An operator's versions under the limit; `bound` says whether memory or arithmetic sets it."""

    title: str
    cost: Cost
    limit_s: float | None
    bound: str
    times: tuple[Times, ...]

    @classmethod
    def of(cls, title: str, cost: Cost, limits: HasLimits | None, times: Sequence[Times]) -> "Ladder":
        if limits is None:
            return cls(title, cost, None, "unknown", tuple(times))
        memory_s = cost.num_bytes / (limits.read_gb_s * 1e9)
        arithmetic_s = cost.flops / (limits.f32_gflop_s * 1e9)
        if memory_s > arithmetic_s:
            return cls(title, cost, memory_s, f"memory, {limits.read_gb_s:.1f} GB/s", tuple(times))
        return cls(title, cost, arithmetic_s, f"f32 FMA peak, {limits.f32_gflop_s:.0f} GFLOP/s", tuple(times))

    @property
    def note(self) -> str:
        """Why a version may pass the limit that is stated; empty where none may."""
        if not self.cost.allows_integers or not self.bound.startswith("f32"):
            return ""
        return (
            "More than 100 % is possible: 16-bit activations are multiplied as integers, "
            "of which a vector holds twice as many."
        )


def timed(rungs: Sequence[Rung], rounds: int, clock: Callable[[], float]) -> list[Times]:
    """Every version once in every round, so that a slow minute of the machine meets them all."""
    seconds: dict[str, list[float]] = {rung.name: [] for rung in rungs}
    todos: dict[str, str] = {}
    for number in range(rounds + 1):  # the first warms up
        for rung in rungs:
            own = seconds[rung.name]
            if rung.name in todos or (len(own) >= _SLOW_RUNS and median(own) > _SLOW_S):
                continue
            try:
                took = _took(rung, number, clock)
            except RuntimeError as error:
                todo = find_todo(error, Path())
                if todo is None:
                    raise
                todos[rung.name] = f"TODO {todo.task}"
                native.binding().settle()
                continue
            if number > 0 or took > _SLOW_S:
                own.append(took)
    return [Times(rung.name, tuple(seconds[rung.name]), todos.get(rung.name, "")) for rung in rungs]


def _took(rung: Rung, number: int, clock: Callable[[], float]) -> float:
    mx.synchronize()
    start_s = clock()
    mx.eval(rung.run(number))
    mx.synchronize()
    return clock() - start_s


def shown(ladder: Ladder) -> str:
    """A ladder as a table: times of the step before are those of the last one that ran."""
    cost = ladder.cost
    lines = [
        f"\n{ladder.title}",
        f"{cost.num_bytes / 1e6:.2f} MB to move, {cost.flops / 1e6:.1f} MFLOP to compute; "
        f"limit: {ladder.bound}",
        f"{'':<16}{'ms median':>10}  {'(min – max)':<19}{'GB/s':>7}{'GFLOP/s':>9}{'of limit':>10}"
        f"{'× step before':>15}",
    ]
    if ladder.limit_s is not None:
        lines.append(_line("limit", (ladder.limit_s,), ladder, None))
    before: float | None = None
    for times in ladder.times:
        if not times.seconds:
            lines.append(f"{times.name:<16}{times.todo:>10}")
            continue
        lines.append(_line(times.name, times.seconds, ladder, before))
        before = median(times.seconds)
    return "\n".join(filter(None, [*lines, ladder.note]))


def _line(name: str, seconds: Sequence[float], ladder: Ladder, before: float | None) -> str:
    middle = median(seconds)
    spread = f"({min(seconds) * 1e3:.3f} – {max(seconds) * 1e3:.3f})" if len(seconds) > 1 else ""
    share = "" if ladder.limit_s is None else f"{ladder.limit_s / middle:.1%}"
    gain = "" if before is None else f"{before / middle:.2f}"
    rates = f"{ladder.cost.num_bytes / middle / 1e9:>7.2f}{ladder.cost.flops / middle / 1e9:>9.2f}"
    return f"{name:<16}{middle * 1e3:>10.3f}  {spread:<19}{rates}{share:>10}{gain:>15}"
