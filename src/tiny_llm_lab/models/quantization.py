"""What `config.json` declares about packed weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tiny_llm_lab.types import UserError

SUPPORTED_BITS = (2, 3, 4, 5, 6, 8)
SUPPORTED_GROUP_SIZES = (32, 64, 128)
# What MLX takes where a conversion wrote null, as mlx-lm's mixed recipes do.
_DEFAULTS = {"bits": 4, "group_size": 64}
_OTHERWISE = "choose an MLX one (mlx-community) or the unquantized checkpoint"


class Packing(NamedTuple):
    """MLX's affine quantization of one matrix."""

    bits: int
    group_size: int


@dataclass(frozen=True)
class Quantization:
    """What `quantization` declares: one packing for all, others for some, None for a module left dense."""

    default: Packing
    overrides: Mapping[str, Packing | None] = field(default_factory=dict)

    def declared(self, module: str) -> Packing | None:
        """The packing of `module`; None when it must be dense."""
        return self.overrides.get(module, self.default)


def read_quantization(path: Path, content: Mapping[str, Any]) -> Quantization | None:
    """The quantization in `content`, the config.json at `path`; UserError for one that cannot be computed."""
    # mlx-lm writes the same object under both names; other tools put their own under the second.
    declared = content.get("quantization") or content.get("quantization_config")
    if not declared:
        return None
    if not isinstance(declared, dict):
        raise UserError(f"{path}: quantization must be an object or null: fetch the file again")
    if (method := _foreign_method(declared)) is not None:
        raise UserError(f"{path}: {method!r} quantization is not supported: {_OTHERWISE}")
    if missing := [key for key in _DEFAULTS if key not in declared]:
        raise UserError(f"{path}: quantization has no {missing[0]}: {_OTHERWISE}")
    default = _DEFAULTS | _given(declared)
    overrides = {
        module: _packing(path, module, default | _given(value) if isinstance(value, dict) else default)
        if value is not False
        else None
        for module, value in declared.items()
        if isinstance(value, dict | bool)
    }
    return Quantization(_packing(path, "quantization", default), overrides)


def _foreign_method(declared: Mapping[str, Any]) -> str | None:
    """The name of a quantization that is not MLX's; None for MLX's own."""
    if "quant_method" in declared:
        return str(declared["quant_method"])
    # Its older files have no quant_method, only switches: load_in_4bit, bnb_4bit_quant_type, ...
    is_bitsandbytes = any(key.lstrip("_").startswith(("load_in_", "bnb_")) for key in declared)
    return "bitsandbytes" if is_bitsandbytes else None


def _given(declared: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in declared.items() if value is not None}


def _packing(path: Path, module: str, declared: Mapping[str, Any]) -> Packing:
    bits, group_size, mode = (declared.get(key) for key in ("bits", "group_size", "mode"))
    if mode not in (None, "affine"):
        raise UserError(
            f"{path}: quantization mode {mode!r} is not supported: "
            "choose an affine one or the unquantized checkpoint"
        )
    if bits not in SUPPORTED_BITS or group_size not in SUPPORTED_GROUP_SIZES:
        raise UserError(
            f"{path}: {module} in {bits!r} bits and groups of {group_size!r} is not supported: "
            f"choose bits of {listed(SUPPORTED_BITS)} and groups of {listed(SUPPORTED_GROUP_SIZES)}"
        )
    return Packing(bits, group_size)


def listed(choices: Sequence[object]) -> str:
    """`choices` as words: a, b or c."""
    return ", ".join(map(str, choices[:-1])) + f" or {choices[-1]}"
