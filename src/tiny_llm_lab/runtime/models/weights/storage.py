"""Which tensors of a checkpoint hold a parameter, and whether they are what the configuration says."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import mlx.core as mx

from tiny_llm_lab.runtime.models.weights.parameters import ParameterShape
from tiny_llm_lab.runtime.models.weights.quantization import (
    AFFINE_PACKINGS,
    FLOAT_PACKINGS,
    Fp8Blocks,
    Packing,
    Quantization,
    Storage,
)
from tiny_llm_lab.runtime.models.weights.safetensors_file import TensorInfo
from tiny_llm_lab.types import UserError

FLOATS = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}
FP8_SCALES = "weight_scale_inv"

Tensors = Mapping[str, TensorInfo]


def checked_storage(
    tensors: Tensors, folder: Path, name: str, shape: ParameterShape, quantization: Quantization | None
) -> Storage | None:
    """How parameter `name` of logical `shape` is stored, None for dense; UserError when it does not fit."""
    module = name.removesuffix(".weight")
    declared = quantization.declared(module) if quantization and len(shape) >= 2 else None
    if isinstance(declared, Fp8Blocks) and f"{module}.{FP8_SCALES}" in tensors:
        _require(tensors, folder, name, shape, ("F8_E4M3",))
        blocks = (-(-shape[0] // declared.rows), -(-shape[1] // declared.columns))
        _require(tensors, folder, f"{module}.{FP8_SCALES}", blocks, tuple(FLOATS))
        return declared
    # mlx-lm leaves modules whose width no group divides dense without saying so: no scales, no packing.
    if isinstance(declared, Packing) and f"{module}.scales" in tensors:
        return _checked_packing(tensors, folder, module, shape, declared)
    _require(tensors, folder, name, shape, tuple(FLOATS))
    return None


def _checked_packing(
    tensors: Tensors, folder: Path, module: str, shape: ParameterShape, declared: Packing
) -> Packing:
    *above, columns = shape
    # The shapes decide, as in mlx-lm: tools that mix bits do not list every module in config.json.
    packing = _packing_by_shape(tensors, folder, module, columns) or declared
    is_affine = packing.mode == "affine"
    groups = (*above, columns // packing.group_size)
    _require(tensors, folder, f"{module}.weight", (*above, columns * packing.bits // 32), ("U32",))
    _require(tensors, folder, f"{module}.scales", groups, tuple(FLOATS) if is_affine else ("U8",))
    if is_affine:
        _require(tensors, folder, f"{module}.biases", groups, tuple(FLOATS))
    return packing


def _packing_by_shape(tensors: Tensors, folder: Path, module: str, columns: int) -> Packing | None:
    """The only packing of `columns` numbers a row that gives these tensors; None when there is none."""
    words, scales = (_find(tensors, folder, f"{module}.{part}") for part in ("weight", "scales"))
    for packing in FLOAT_PACKINGS if scales.dtype == "U8" else AFFINE_PACKINGS:
        widths = (columns * packing.bits // 32,), (columns // packing.group_size,)
        if columns % packing.group_size == 0 and (words.shape[-1:], scales.shape[-1:]) == widths:
            return packing
    return None


def tensors_holding(name: str, storage: Storage | None) -> Iterator[str]:
    """The tensors of parameter `name`."""
    yield name
    module = name.removesuffix(".weight")
    if isinstance(storage, Fp8Blocks):
        yield f"{module}.{FP8_SCALES}"
    elif storage is not None:
        yield f"{module}.scales"
        if storage.mode == "affine":
            yield f"{module}.biases"


def _find(tensors: Tensors, folder: Path, name: str) -> TensorInfo:
    if name not in tensors:
        raise UserError(f"{folder}: tensor {name} is missing: fetch the whole checkpoint again")
    return tensors[name]


def _require(
    tensors: Tensors, folder: Path, name: str, shape: ParameterShape, dtypes: tuple[str, ...]
) -> None:
    info = _find(tensors, folder, name)
    if info.dtype not in dtypes or info.shape != shape:
        raise UserError(
            f"{info.path}: tensor {name} is {info.dtype} {list(info.shape)}, "
            f"not {' or '.join(dtypes)} {list(shape)}: use the config.json that belongs to these weights"
        )
