"""The arguments and results of a call as plain values, and the difference of two of them."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

import mlx.core as mx
import numpy as np

Value = object  # a scalar, an Array, an Opaque, or a tuple or dict of values

_SCALARS: Final = (bool, int, float, str, bytes, type(None))
# Of a larger array a sample is kept: copies of all would take longer than the run itself.
_MOST_NUMBERS: Final = 50_000
_DEEPEST: Final = 3
_MOST_ELEMENTS: Final = 64
# Of the largest number of an array: far above what another order of additions changes, far below a mistake.
_TOLERANCE: Final = {"float32": 1e-4, "float64": 1e-4, "float16": 1e-2, "bfloat16": 4e-2}


@dataclasses.dataclass(frozen=True)
class Array:
    """An array in row order: every number, or of a large one each `step`-th."""

    shape: tuple[int, ...]
    dtype: str
    numbers: np.ndarray  # float64
    step: int = 1

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.shape))}] {self.dtype}"


@dataclasses.dataclass(frozen=True)
class Opaque:
    """An object that is not looked into: only its class is compared."""

    kind: str

    def __str__(self) -> str:
        return self.kind


@dataclasses.dataclass(frozen=True)
class Difference:
    """What differs: where in a value, and in words how."""

    where: str
    says: str


def kept(value: object, depth: int = 0) -> Value:
    """A copy of `value` that later changes leave alone; arrays are computed for it."""
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, mx.array | np.ndarray | np.generic):
        return _array(value)
    if depth >= _DEEPEST:
        return Opaque(type(value).__name__)
    if isinstance(value, Mapping):
        return {str(key): kept(each, depth + 1) for key, each in islice(value.items(), _MOST_ELEMENTS)}
    if isinstance(value, list | tuple):
        return tuple(kept(each, depth + 1) for each in value[:_MOST_ELEMENTS])
    if isinstance(value, set | frozenset):
        return tuple(kept(each, depth + 1) for each in sorted(value, key=repr))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value))
        # Clock times differ between any two runs.
        return {
            name: kept(getattr(value, name), depth + 1)
            for name in names
            if not name.endswith(("_s", "_time")) and hasattr(value, name)
        }
    return Opaque(type(value).__name__)


def state_of(owner: object) -> dict[str, Value]:
    """The public counters and flags of an object: what a method may have changed without returning it."""
    attributes = getattr(owner, "__dict__", {})
    return {
        name: value
        for name, value in attributes.items()
        if not name.startswith("_") and not name.endswith(("_s", "_time")) and isinstance(value, int | str)
    }


def difference(wanted: Value, got: Value, where: str = "") -> Difference | None:
    """The first place where two values differ by more than rounding; None if there is none."""
    if isinstance(wanted, Array) and isinstance(got, Array):
        says = _array_difference(wanted, got)
        return Difference(where, says) if says else None
    if isinstance(wanted, dict) and isinstance(got, dict):
        return _first(_of_dicts(wanted, got, where))
    if isinstance(wanted, tuple) and isinstance(got, tuple):
        if len(wanted) != len(got):
            return Difference(where, f"the reference has {len(wanted)} elements, yours {len(got)}")
        return _first(
            difference(one, other, f"{where}[{i}]")
            for i, (one, other) in enumerate(zip(wanted, got, strict=True))
        )
    if isinstance(wanted, Opaque) or isinstance(got, Opaque):
        return None  # another class may serve as well: what it computes is compared where it does so
    if isinstance(wanted, float) and isinstance(got, int | float):
        is_same = (
            wanted == got or abs(wanted - got) <= 1e-4 * abs(wanted) or (wanted != wanted and got != got)
        )
        return None if is_same else Difference(where, f"the reference has {wanted:.6g}, yours {got:.6g}")
    if wanted == got:
        return None
    return Difference(where, f"the reference has {_short(wanted)}, yours {_short(got)}")


def distance(wanted: Value, got: Value) -> float:
    """How far apart two values are: 0 where nothing differs, and above 1 where `difference` finds something.

    In between lie arrays that differ within what is allowed, as shares of it.
    """
    if isinstance(wanted, Array) and isinstance(got, Array):
        if wanted.shape != got.shape or wanted.dtype != got.dtype:
            return math.inf
        most, allowed = float(_deltas(wanted.numbers, got.numbers).max(initial=0.0)), _allowed(wanted)
        return most / allowed if allowed else math.inf if most else 0.0
    parts = _common_parts(wanted, got)
    if parts:
        return max(distance(*part) for part in parts)
    return math.inf if difference(wanted, got) else 0.0


def _common_parts(wanted: Value, got: Value) -> list[tuple[Value, Value]]:
    if isinstance(wanted, dict) and isinstance(got, dict):
        return [(value, got[key]) for key, value in wanted.items() if key in got]
    if isinstance(wanted, tuple) and isinstance(got, tuple) and len(wanted) == len(got):
        return list(zip(wanted, got, strict=True))
    return []


def _array(value: mx.array | np.ndarray | np.generic) -> Array:
    dtype = str(value.dtype).rpartition(".")[2]
    step = -(-value.size // _MOST_NUMBERS) or 1
    sample = value.reshape(-1)[::step]
    wide = sample.astype(mx.float32) if isinstance(sample, mx.array) and dtype == "bfloat16" else sample
    return Array(tuple(value.shape), dtype, np.array(wide).astype(np.float64), step)


def _array_difference(wanted: Array, got: Array) -> str | None:
    if wanted.shape != got.shape:
        return f"shape: the reference has {list(wanted.shape)}, yours {list(got.shape)}"
    if wanted.dtype != got.dtype:
        return f"dtype: the reference has {wanted.dtype}, yours {got.dtype}"
    one, other = wanted.numbers, got.numbers
    delta = _deltas(one, other)
    if float(delta.max(initial=0.0)) <= _allowed(wanted):
        return None
    at = int(np.argmax(delta))
    place = ", ".join(str(int(i)) for i in np.unravel_index(at * wanted.step, wanted.shape))
    return (
        f"{wanted}, max |delta| {delta[at]:.3g} at [{place}]: "
        f"the reference has {one[at]:.6g}, yours {other[at]:.6g}"
    )


def _deltas(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # inf - inf: equal, and set to 0
        delta = np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0.0, np.abs(one - other))
    return np.where(np.isnan(delta), np.inf, delta)


def _allowed(wanted: Array) -> float:
    numbers = wanted.numbers
    largest = float(np.max(np.abs(numbers), initial=0.0, where=np.isfinite(numbers)))
    return _TOLERANCE.get(wanted.dtype, 0.0) * largest


def _of_dicts(wanted: dict[str, Value], got: dict[str, Value], where: str) -> Iterator[Difference | None]:
    public = {key: value for key, value in wanted.items() if not key.startswith("_")}  # others are one's own
    for key, value in public.items():
        name = f"{where}.{key}" if where else key
        yield difference(value, got[key], name) if key in got else Difference(name, "yours has none")


def _first(differences: Iterator[Difference | None]) -> Difference | None:
    return next((each for each in differences if each is not None), None)


def _short(value: Value) -> str:
    text = str(value) if isinstance(value, Array) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
