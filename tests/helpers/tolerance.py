"""How close is close enough, and what a learner sees when it is not."""

import gc
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# On hardware with tensor cores MLX multiplies float32 through TF32, with 10 bits of mantissa.
os.environ.setdefault("MLX_ENABLE_TF32", "0")

import mlx.core as mx
import numpy as np


@dataclass(frozen=True)
class Tolerance:
    """Accepted when |got - want| <= atol + rtol * |want|."""

    rtol: float
    atol: float


# What pytest leaves of 80 characters for a line of a message.
_WIDTH = 72
# Copies, look-ups, masks: nothing is rounded.
EXACT = Tolerance(0.0, 0.0)
# One float32 operator on inputs of size one. A sum of a few hundred products is off by tens of units in the
# last place (2^-23 = 1.2e-7) in any order of summation; a wrong formula is off by far more.
F32 = Tolerance(2e-5, 2e-5)
# float32 through two or three whole layers, each of which reorders and rescales.
F32_MODEL = Tolerance(2e-4, 2e-4)


def rounding(dtype: mx.Dtype, steps: float = 2.0) -> Tolerance:
    """`steps` roundings to `dtype`, each at most half of its epsilon: 2^-10 for float16, 2^-7 for bfloat16.

    The default grants two: one on the way and one of the result. Values have size one.
    """
    unit = {mx.float32: 2.0**-23, mx.float16: 2.0**-10, mx.bfloat16: 2.0**-7}[dtype]
    return Tolerance(steps * unit, steps * unit)


def of_kernel(want: np.ndarray, dtype: mx.Dtype, rounding: float = 0.0) -> Tolerance:
    """What a C++ kernel may be off by: sums in float32, then one rounding to `dtype`.

    Its sums run over thousands of products in several lanes and keep 1e-5 of the output's maximum, of which
    they need a tenth, or half where a lone output is nearly zero. 16 bits add half a unit of the last place,
    and no other rounding on the way but `rounding`, an absolute error that is the operator's by design.
    """
    half, smallest = {mx.float32: (0.0, 0.0), mx.float16: (2**-11, 2**-25), mx.bfloat16: (2**-8, 0.0)}[dtype]
    largest = float(np.max(np.abs(want), initial=0.0, where=np.isfinite(want)))
    return Tolerance(half, 1e-5 * largest + smallest + rounding)


def as_float64(x: object) -> np.ndarray:
    """An MLX array of any dtype, or anything that NumPy takes, as float64."""
    if isinstance(x, mx.array):
        if x.dtype in (mx.bfloat16, mx.float16):
            x = x.astype(mx.float32)
        return np.array(x).astype(np.float64)
    return np.asarray(x, dtype=np.float64)


def assert_close(
    got: object,
    want: object,
    tolerance: Tolerance = F32,
    *,
    legend: str = "",
    dtype: mx.Dtype | None = None,
    what: str = "the result",
) -> None:
    """Fail, in at most ten lines, unless `got` has the shape, the dtype and the numbers of `want`."""
    __tracebackhide__ = True
    if got is None:
        raise AssertionError(f"{what}: returned None; is a return statement missing?")
    mine, target = as_float64(got), as_float64(want)
    if mine.shape != target.shape:
        raise AssertionError(f"{what}: shape {mine.shape}, expected {target.shape} {legend}".rstrip())
    if dtype is not None and isinstance(got, mx.array) and got.dtype != dtype:
        raise AssertionError(f"{what}: dtype {got.dtype}, expected {dtype}")
    if mine.size == 0:
        return
    with np.errstate(invalid="ignore"):  # inf - inf: equal, and set to 0
        delta = np.where(mine == target, 0.0, np.abs(mine - target))
        delta = np.where(np.isnan(delta), np.inf, delta)
        allowed = tolerance.atol + tolerance.rtol * np.where(np.isfinite(target), np.abs(target), 0.0)
    if np.all(delta <= allowed):
        return
    index = np.unravel_index(np.argmax(delta - allowed), delta.shape)
    where = ", ".join(str(int(i)) for i in index)
    lines = [
        f"{what}: {np.count_nonzero(delta > allowed)} of {delta.size} differ, shape {mine.shape} {legend}",
        f"max |delta| {delta[index]:.3g} at [{where}]: expected {target[index]:.6g}, got {mine[index]:.6g}",
        f"allowed there: {allowed[index]:.2g}",
        *_side_by_side(target, mine, [int(i) for i in index]),
        *_where(delta > allowed, legend),
    ]
    raise AssertionError("\n".join(lines))


def _where(is_wrong: np.ndarray, legend: str) -> list[str]:
    """One line, if a part of the array is wrong as a whole: some heads, some rows, the last columns."""
    places = [sorted({int(i) for i in axis}) for axis in np.nonzero(np.atleast_1d(is_wrong))]
    num_in_part = math.prod(map(len, places))
    if num_in_part in (1, is_wrong.size) or 2 * np.count_nonzero(is_wrong) < num_in_part:
        return []
    names = legend.strip("[]").split(", ") if legend.count(",") == is_wrong.ndim - 1 else []
    parts = [
        f"{names[axis] if names else f'axis {axis}'} at {_runs(found)} of 0 to {length - 1}"
        for axis, (found, length) in enumerate(zip(places, is_wrong.shape, strict=True))
        if len(found) < length
    ]
    return [f"all that differ: {'; '.join(parts)}"]


def _runs(numbers: Sequence[int]) -> str:
    """Sorted numbers, those that follow each other as "3 to 5"."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    return ", ".join(
        str(first) if first == last else f"{first} to {last}"
        for first, last in zip(starts, ends, strict=True)
    )


def _side_by_side(target: np.ndarray, mine: np.ndarray, index: Sequence[int]) -> list[str]:
    """A title and up to 4 x 4 numbers of both around `index`; nothing where they would look the same.

    Fewer columns where the numbers are long: pytest's report of a failure has 80 characters a line.
    """
    if target.size == 1:
        return []  # the line before says it all
    outer, inner = tuple(index[:-2]), index[-2:]
    for digits in (4, 7, 10, 17):  # the fewest that tell the two apart; 17 tell any two float64 apart
        for most in (4, 3, 2, 1):
            sizes = [*[4] * (len(inner) - 1), most]
            spans = [_around(*each) for each in zip(inner, target.shape[-2:], sizes, strict=True)]
            windows = [np.atleast_2d(x[(*outer, *spans)]) for x in (target, mine)]
            left, right = ([[f"{n:.{digits}g}" for n in row] for row in window] for window in windows)
            lines = _beside(left, right)
            if most == 1 or len(lines[0]) <= _WIDTH:
                break
        if left != right:
            names = ("row", "column")[-len(spans) :]
            place = ", ".join(_named(name, span) for name, span in zip(names, spans, strict=True))
            return [f"expected | yours, {place}{f' of {list(outer)}' if outer else ''}:", *lines]
    return []


def _beside(left: Sequence[Sequence[str]], right: Sequence[Sequence[str]]) -> list[str]:
    """Rows of both sides, numbers below numbers."""
    size = max(len(number) for row in (*left, *right) for number in row)
    rows = [[" ".join(f"{number:>{size}}" for number in row) for row in side] for side in (left, right)]
    return [f"{a} | {b}" for a, b in zip(*rows, strict=True)]


def _around(i: int, length: int, size: int) -> slice:
    """`size` neighbours of an axis of `length`, or all there are, with `i` among them."""
    start = max(0, min(i - (size > 1), length - size))
    return slice(start, min(start + size, length))


def _named(name: str, span: slice) -> str:
    last = span.stop - 1
    return f"{name} {last}" if last == span.start else f"{name}s {span.start} to {last}"


def active_bytes() -> int:
    """MLX's memory in use, once the garbage of earlier tests is gone."""
    gc.collect()
    mx.synchronize()
    return mx.get_active_memory()


def peak_bytes(work: Callable[[], Any]) -> int:
    """How far MLX's memory rises above what is in use now while `work()` runs and is evaluated."""
    mx.synchronize()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    out = work()
    if out is not None:
        mx.eval(out)
    mx.synchronize()
    return max(mx.get_peak_memory() - before, 0)  # the peak stays 0 when nothing is allocated
