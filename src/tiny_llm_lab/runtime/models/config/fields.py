"""Single values of a `config.json`, checked; null counts as missing."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tiny_llm_lab.types import UserError

FILE_AGAIN = "fetch the file again"
LARGEST: Final = 2**31 - 1  # of a count; no model has a size above it
MOST_LAYERS: Final = 10_000  # of a model, and experts of a layer: each has tensors with a name
_SMALLEST_NUMBER, _LARGEST_NUMBER = 1e-30, 1e30  # so that float32 holds it and its reciprocal
_LONGEST_SHOWN: Final = 40


def count_of(
    path: Path, content: Mapping[str, Any], name: str, default: object = None, most: int = LARGEST
) -> int:
    """The whole number of 1 to `most` under `name`; UserError for anything else."""
    value = _given(content, name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{path}: {name} must be a whole number above 0, not {shown(value)}: {FILE_AGAIN}")
    if value > most:
        raise UserError(f"{path}: {name} must be at most {most}, not {shown(value)}: {FILE_AGAIN}")
    return value


def number_of(
    path: Path,
    content: Mapping[str, Any],
    name: str,
    default: object = None,
    least: float = _SMALLEST_NUMBER,
) -> float:
    """The number of `least` to 1e30 under `name`; UserError for anything else."""
    value = _given(content, name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise UserError(f"{path}: {name} must be a number above 0, not {shown(value)}: {FILE_AGAIN}")
    if not least <= value <= _LARGEST_NUMBER:
        limit = f"{least:g} or more" if value < least else f"at most {_LARGEST_NUMBER:g}"
        raise UserError(f"{path}: {name} must be {limit}, not {shown(value)}: {FILE_AGAIN}")
    return float(value)


def shown(value: object) -> str:
    """`value` as our one line quotes it: as Python writes it, cut if it is long."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of more digits than Python writes
        return "a number of thousands of digits"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def flag_of(path: Path, content: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """True or false under `name`; UserError for anything else."""
    value = _given(content, name, default)
    if not isinstance(value, bool):
        raise UserError(f"{path}: {name} must be true or false, not {shown(value)}: {FILE_AGAIN}")
    return value


def object_of(path: Path, content: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The object under `name`, empty when missing; UserError for anything else."""
    value = _given(content, name, {})
    if not isinstance(value, dict):
        raise UserError(f"{path}: {name} must be an object or null: {FILE_AGAIN}")
    return value


def list_of(path: Path, content: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    """The list of `kind` under `name`, empty when missing; UserError for anything else."""
    value = _given(content, name, [])
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        what = {int: "numbers", str: "strings"}[kind]
        raise UserError(f"{path}: {name} must be a list of {what}: {FILE_AGAIN}")
    return value


def ids_of(path: Path, content: Mapping[str, Any], name: str, vocab_size: int) -> list[int]:
    """The token ids under `name`, one or a list, empty when missing; UserError for anything else."""
    value = _given(content, name, [])
    ids: list[Any] = value if isinstance(value, list) else [value]
    if not all(type(each) is int and 0 <= each < vocab_size for each in ids):
        raise UserError(
            f"{path}: {name} must be token ids below {vocab_size}, not {shown(value)}: {FILE_AGAIN}"
        )
    return ids


def agreed(path: Path, name: str, values: Sequence[object]) -> object:
    """The one value among `values`, which all stand for `name`, or None; UserError if two differ."""
    stated = [value for value in values if value is not None]
    if any(value != stated[0] for value in stated):
        raise UserError(
            f"{path}: {name} has two values, {shown(stated[0])} and {shown(stated[-1])}: {FILE_AGAIN}"
        )
    return stated[0] if stated else None


def _given(content: Mapping[str, Any], name: str, default: object) -> object:
    value = content.get(name)
    return default if value is None else value
