"""Judges the ways to compute one thing on this device: of those that are right, the fastest for each size."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import TypeVar

import mlx.core as mx

from tiny_llm_lab.runtime.interleave import interleave
from tiny_llm_lab.runtime.native.device.fused_checks import in_one_line
from tiny_llm_lab.runtime.native.device.verdict import Verdict
from tiny_llm_lab.types import Clock

Cell = tuple[int, int]  # two sizes that a way was timed with
# Of a cell: a way's time divided by that of the way before all others, and what it needs of memory.
Measure = Callable[[Cell], tuple[float, float]]

K = TypeVar("K")
LAYERS, _ROUNDS, _WARM_UPS = 4, 7, 2  # so many layers are in flight while a way is timed


def timed_for(borders: Mapping[int, int], size: int) -> int:
    """The timed size that is used for `size`: `borders` has it at the first one that it is used for."""
    firsts = list(borders)
    return borders[firsts[bisect_right(firsts, size) - 1]]


def judged(
    subject: str, wrong: Iterator[str], cells: Sequence[Cell], measure: Measure, relative_to: str
) -> Verdict:
    """The verdict on a way, perhaps a learner's. If it raises, whatever that is, it isn't used.

    `wrong` has the cases, in words, with a wrong result. `relative_to`: what times are divided by, and the
    units of a cell; empty for the way before all others.
    """
    try:
        for case in wrong:
            return Verdict(subject, False, f"wrong for {case}: not used")
        ratios, needs = zip(*map(measure, cells), strict=True)
    except Exception as error:
        return Verdict(subject, False, f"fails ({in_one_line(error)}): not used")
    times = ", ".join(f"{ratio:.2f} with {a} x {b}" for ratio, (a, b) in zip(ratios, cells, strict=True))
    used = f"{times}; {'used where it is the fastest' if min(ratios) < 1 else 'not used'}"
    says = f"right; its time relative to {relative_to}: {used}" if relative_to else "right"
    return Verdict(subject, True, says, ratios, needs)


def compared(ways: Sequence[Callable[[], Callable[[], None]]], clock: Clock) -> float:
    """The second's time divided by the first's; medians of alternating runs.

    A way prepares a run and returns what is timed.
    """
    times = list[float](), list[float]()
    mx.clear_cache()
    for number, which in interleave((0, 1), _ROUNDS, warm_ups=_WARM_UPS):
        run = ways[which]()
        start_s = clock()
        run()
        if number >= 0:
            times[which].append(clock() - start_s)
    return median(times[1]) / median(times[0])


def fastest(tried: Sequence[tuple[Verdict, K]], cells: Sequence[Cell], most: float = 1) -> Mapping[Cell, K]:
    """For each cell the way with the least ratio there, the earlier one of equals.

    The ratios are in the order of `cells`, none of a way that is wrong. A cell in which none is below `most`
    is left out.
    """
    best: dict[Cell, tuple[float, K]] = {}
    for verdict, way in tried:
        for cell, ratio in zip(cells, verdict.ratios, strict=False):
            if ratio < (best[cell][0] if cell in best else most):
                best[cell] = ratio, way
    return {cell: way for cell, (_, way) in best.items()}
