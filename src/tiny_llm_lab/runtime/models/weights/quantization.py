"""The packed weights that `config.json` declares."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

from tiny_llm_lab.runtime.models.config.fields import Fields
from tiny_llm_lab.types import QuantizationMode

SUPPORTED_BITS = (2, 3, 4, 5, 6, 8)
SUPPORTED_GROUP_SIZES = (32, 64, 128)
_KEYS = ("bits", "group_size", "mode")
_OTHERWISE = "choose an MLX checkpoint (mlx-community) or the unquantized one"


class Packing(NamedTuple):
    """MLX's quantization of one matrix."""

    bits: int
    group_size: int
    mode: QuantizationMode = "affine"


class Fp8Blocks(NamedTuple):
    """Numbers of 8 bits, float E4M3, with one scale for each block: what transformers calls fp8."""

    rows: int
    columns: int


Storage = Packing | Fp8Blocks
# Those without biases: MLX knows one width and one size of group of each.
FLOAT_PACKINGS = (Packing(4, 32, "mxfp4"), Packing(8, 32, "mxfp8"), Packing(4, 16, "nvfp4"))
# MLX's default if a conversion wrote null, as mlx-lm's mixed recipes do.
_AFFINE = Packing(4, 64)
AFFINE_PACKINGS = tuple(Packing(*sizes) for sizes in product(SUPPORTED_BITS, SUPPORTED_GROUP_SIZES))


@dataclass(frozen=True)
class Quantization:
    """What `quantization` declares: one storage for all, others for some, None for a module left dense."""

    default: Storage
    overrides: Mapping[str, Packing | None] = field(default_factory=dict)

    def declared(self, module: str) -> Storage | None:
        """How `module` is stored; None if it must be dense."""
        return self.overrides.get(module, self.default)

    def renamed(self, rename: Callable[[str], str]) -> "Quantization":
        """The same for modules of other names."""
        return Quantization(self.default, {rename(name): value for name, value in self.overrides.items()})


def read_quantization(content: Fields) -> Quantization | None:
    """The quantization in `content`, a config.json; UserError for one that cannot be computed."""
    # mlx-lm writes the same object under both names; other tools put their own under the second.
    declared = content.get("quantization") or content.get("quantization_config")
    if not declared:
        return None
    if not isinstance(declared, dict):
        raise content.refused("quantization must be an object or null")
    if declared.get("quant_method") == "fp8":
        return Quantization(_fp8_blocks(content, declared))
    if (method := _foreign_method(declared)) is not None:
        raise content.refused(f"{method!r} quantization is not supported", _OTHERWISE)
    if missing := [key for key in _KEYS[:2] if key not in declared]:
        raise content.refused(f"quantization needs {missing[0]}", _OTHERWISE)
    default = _complete(declared, {})
    overrides = {
        module: _packing(content, module, _complete(value, default) if isinstance(value, dict) else default)
        if value is not False
        else None
        for module, value in declared.items()
        if isinstance(value, dict | bool)
    }
    return Quantization(_packing(content, "quantization", default), overrides)


def _complete(declared: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    """Mode, bits and group size of `declared`; what is null or missing as in a `default` of the same mode."""
    given = {key: declared[key] for key in _KEYS if declared.get(key) is not None}
    mode = str(given.get("mode", default.get("mode", "affine")))
    known: dict[str, dict[str, Any]] = {each.mode: each._asdict() for each in (_AFFINE, *FLOAT_PACKINGS)}
    inherited = default if default.get("mode") == mode else {}
    return {**known.get(mode, {}), **inherited, **given, "mode": mode}


def _fp8_blocks(content: Fields, declared: Mapping[str, Any]) -> Fp8Blocks:
    """The blocks of transformers' fp8. Its own kernels round activations to 8 bits too; here they stay."""
    block = declared.get("weight_block_size")
    rows, columns = block if isinstance(block, list) and len(block) == 2 else (0, 0)
    settings = {
        "weight_block_size": all(type(size) is int and size > 0 for size in (rows, columns)),
        "activation_scheme": declared.get("activation_scheme", "dynamic") == "dynamic",
        "fmt": declared.get("fmt", "e4m3") == "e4m3",
        "scale_fmt": declared.get("scale_fmt") in (None, "float"),
    }
    if unknown := [key for key, is_known in settings.items() if not is_known]:
        message = f"{unknown[0]} {declared.get(unknown[0])!r}"
        raise content.refused(f"fp8 quantization with {message} is not supported", _OTHERWISE)
    return Fp8Blocks(rows, columns)


def _foreign_method(declared: Mapping[str, Any]) -> str | None:
    """The name of a quantization that is not MLX's; None for MLX's own."""
    if "quant_method" in declared:
        return str(declared["quant_method"])
    # Its older files have no quant_method, only switches: load_in_4bit, bnb_4bit_quant_type, ...
    is_bitsandbytes = any(key.lstrip("_").startswith(("load_in_", "bnb_")) for key in declared)
    return "bitsandbytes" if is_bitsandbytes else None


def _packing(content: Fields, module: str, declared: Mapping[str, Any]) -> Packing:
    bits, group_size, mode = declared.get("bits"), declared.get("group_size"), declared["mode"]
    by_mode = {packing.mode: packing for packing in FLOAT_PACKINGS}
    if mode == "affine":
        if bits not in SUPPORTED_BITS or group_size not in SUPPORTED_GROUP_SIZES:
            message = f"{module} in {bits!r} bits and groups of {group_size!r} is not supported"
            cure = f"choose bits of {listed(SUPPORTED_BITS)} and groups of {listed(SUPPORTED_GROUP_SIZES)}"
            raise content.refused(message, cure)
        return Packing(bits, group_size)
    if mode not in by_mode:
        modes = listed(["affine", *by_mode])
        raise content.refused(f"quantization mode {mode!r} is not supported", f"choose one of {modes}")
    known = by_mode[mode]
    if (bits, group_size) != (known.bits, known.group_size):
        message = f"{module} in {mode} with {bits!r} bits and groups of {group_size!r} is not supported"
        raise content.refused(message, f"choose {known.bits} bits and groups of {known.group_size}")
    return known


def listed(choices: Sequence[object]) -> str:
    """`choices` as words: a, b or c."""
    return ", ".join(map(str, choices[:-1])) + f" or {choices[-1]}"
