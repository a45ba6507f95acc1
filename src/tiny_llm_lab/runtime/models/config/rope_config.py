"""Rotary positions in a `config.json`: `rope_theta`, `rope_scaling`, and `rope_parameters` of newer files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tiny_llm_lab.runtime.models.config.fields import (
    FILE_AGAIN,
    LARGEST,
    agreed,
    count_of,
    flag_of,
    number_of,
    object_of,
)
from tiny_llm_lab.types import RopeScaling, UserError, yarn_magnitude

_PLACES = ("rope_parameters", "rope_scaling")
_ORIGINAL = "original_max_position_embeddings"
_WITHOUT = "choose a checkpoint without it"
_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_YARN = {"beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"}
# Keys of each type that we compute or that change nothing; any other key would change the angles.
_KEYS = {
    "default": _COMMON | _YARN | {"factor", _ORIGINAL},
    "linear": _COMMON | {"factor", _ORIGINAL},
    "dynamic": _COMMON | {"factor", _ORIGINAL},
    "yarn": _COMMON | _YARN | {"factor", _ORIGINAL},
}


class RopeConfig(NamedTuple):
    """The base of the rotations, how they are stretched, and the number of positions that results."""

    theta: float
    scaling: RopeScaling | None
    max_position_embeddings: int


def read_rope(path: Path, content: Mapping[str, Any]) -> RopeConfig:
    """What `content`, the config.json at `path`, says about rotary positions; UserError for the unknown.

    With yarn the positions are at least factor * original_max_position_embeddings: model cards add yarn to a
    config.json whose max_position_embeddings they leave alone.
    """
    parts = {name: object_of(path, content, name) for name in _PLACES}
    everywhere = [content, *parts.values()]
    if any(part.get("partial_rotary_factor") not in (None, 1) for part in everywhere):
        raise UserError(f"{path}: partial_rotary_factor is not supported: choose another checkpoint")
    stated = {"rope_theta": agreed(path, "rope_theta", [part.get("rope_theta") for part in everywhere])}
    theta = number_of(path, stated, "rope_theta")
    positions = count_of(path, content, "max_position_embeddings")
    kinds = {name: _kind(path, name, part) for name, part in parts.items()}
    scaled = [name for name in _PLACES if kinds[name] != "default"]
    if len({_settings(parts[name]) for name in scaled}) > 1:
        raise UserError(f"{path}: rope_parameters and rope_scaling differ: {FILE_AGAIN}")
    if not scaled:
        return RopeConfig(theta, None, positions)
    name, part = scaled[0], parts[scaled[0]]
    original = agreed(path, _ORIGINAL, [content.get(_ORIGINAL), part.get(_ORIGINAL)])
    if kinds[name] == "linear":
        return RopeConfig(theta, RopeScaling("linear", number_of(path, part, "factor"), positions), positions)
    if kinds[name] == "dynamic":
        # Its frequencies change only after max_position_embeddings, where we serve no text.
        if original not in (None, positions):
            raise UserError(
                f"{path}: {name} of type 'dynamic' with another {_ORIGINAL} than max_position_embeddings "
                "is not supported: choose another checkpoint"
            )
        return RopeConfig(theta, None, positions)
    if original is None:
        message = f"{name} of type 'yarn' needs {_ORIGINAL}: add it, the context length of the first training"
        raise UserError(f"{path}: {message}")
    scaling = _yarn(path, part, count_of(path, {_ORIGINAL: original}, _ORIGINAL))
    reached = int(scaling.factor * scaling.original_max_position_embeddings)
    if reached > LARGEST:
        message = f"factor * {_ORIGINAL} must be at most {LARGEST} positions"
        raise UserError(f"{path}: {message}: {FILE_AGAIN}")
    return RopeConfig(theta, scaling, max(positions, reached))


def _kind(path: Path, name: str, part: Mapping[str, Any]) -> str:
    """The type that `part` states; UserError for one that is not known, or with keys that are not."""
    kind = part.get("rope_type") or part.get("type") or "default"
    if (part.get("type") or kind) != kind:
        raise UserError(f"{path}: rope_type and type in {name} differ: {FILE_AGAIN}")
    if kind not in _KEYS:
        # We don't advise to remove it: weights trained with it would give wrong answers silently.
        raise UserError(f"{path}: {name} of type {kind!r} is not supported: {_WITHOUT}")
    if unknown := sorted(part.keys() - _KEYS[kind]):
        raise UserError(f"{path}: {unknown[0]} in {name} of type {kind!r} is not supported: {_WITHOUT}")
    return str(kind)


def _yarn(path: Path, part: Mapping[str, Any], original: int) -> RopeScaling:
    factor = number_of(path, part, "factor")
    # As transformers reads them: mscale counts only together with mscale_all_dim.
    magnitude = yarn_magnitude(factor)
    if part.get("mscale") and part.get("mscale_all_dim"):
        weights = (number_of(path, part, key) for key in ("mscale", "mscale_all_dim"))
        above, below = (yarn_magnitude(factor, weight) for weight in weights)
        magnitude = above / below
    return RopeScaling(
        "yarn",
        factor,
        original,
        number_of(path, part, "attention_factor", magnitude),
        number_of(path, part, "beta_fast", 32.0),
        number_of(path, part, "beta_slow", 1.0),
        flag_of(path, part, "truncate", True),
    )


def _settings(part: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """What a part states, whatever its order and whichever name its type goes by."""
    rest = {key: value for key, value in part.items() if key not in _COMMON and value is not None}
    return frozenset((key, repr(value)) for key, value in rest.items()) | {
        ("type", str(part.get("rope_type") or part.get("type")))
    }
