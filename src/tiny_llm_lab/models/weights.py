"""The tensors of a checkpoint: where they are, whether they fit the model, and as what they are loaded."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import mlx.core as mx

from tiny_llm_lab.models.config import (
    SUPPORTED_BITS,
    SUPPORTED_GROUP_SIZES,
    Packing,
    Quantization,
    one_line,
    read_json,
)
from tiny_llm_lab.models.experts import are_numbered, stack_experts, stored_shapes
from tiny_llm_lab.models.parameters import EMBEDDING, ParameterShape
from tiny_llm_lab.models.safetensors_file import TensorInfo, read_header
from tiny_llm_lab.native import reads
from tiny_llm_lab.types import ModelConfig, QuantizedWeights, UserError, Weight

INDEX_FILE = "model.safetensors.index.json"
_FLOATS = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}

Tensors = Mapping[str, TensorInfo]
# For every parameter: how it is packed, or None for a dense one.
Plan = Mapping[str, Packing | None]


def load_weights(
    folder: Path, config: ModelConfig, quantization: Quantization | None, dtype: mx.Dtype | None
) -> tuple[dict[str, Weight], mx.Dtype]:
    """The model's weights in `dtype`, or in that of the stored embedding when None; and that dtype.

    Names are the checkpoint's own, but experts are stacked however they are stored, as in `parameters`.
    Every needed tensor is checked before the first is read. Others are ignored: rotary tables, and the
    head that some tied checkpoints ship.
    """
    tensors = find_tensors(folder)
    plan = {
        name: _checked_packing(tensors, folder, name, shape, quantization)
        for name, shape in stored_shapes(config, are_numbered(tensors))
    }
    part = "weight" if plan[f"{EMBEDDING}.weight"] is None else "scales"
    target = dtype or _FLOATS[tensors[f"{EMBEDDING}.{part}"].dtype]
    weights = _read(tensors, plan, target)
    stack_experts(weights, config)
    return weights, target


def with_activation_bits(weights: Mapping[str, Weight], activation_bits: int) -> dict[str, Weight]:
    """The same weights; those that the kernels can multiply so, the packed ones of 4 bits, ask for it."""
    return {
        name: replace(weight, activation_bits=activation_bits)
        if isinstance(weight, QuantizedWeights) and weight.bits == 4 and reads(4, weight.group_size)
        else weight
        for name, weight in weights.items()
    }


def find_tensors(folder: Path) -> dict[str, TensorInfo]:
    """Every tensor of the folder's safetensors files, from their checked headers."""
    return {name: info for file in weight_files(folder) for name, info in read_header(file).items()}


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files: those that its index names, or all; at least one."""
    index = folder / INDEX_FILE
    files = _shards(index) if index.exists() else sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder}: holds no *.safetensors file: fetch the whole checkpoint again")
    return files


def _shards(index: Path) -> list[Path]:
    weight_map = read_json(index).get("weight_map")
    names = list(weight_map.values()) if isinstance(weight_map, dict) else []
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise UserError(f"{index}: has no weight_map of file names: fetch the file again")
    files = [index.parent / name for name in sorted(set(names))]
    for file in files:
        if not file.is_file():
            raise UserError(f"{file}: named by {INDEX_FILE} but not there: fetch the whole checkpoint again")
    return files


def _checked_packing(
    tensors: Tensors, folder: Path, name: str, shape: ParameterShape, quantization: Quantization | None
) -> Packing | None:
    """How parameter `name` of logical `shape` is packed; UserError when its tensors do not fit."""
    module = name.removesuffix(".weight")
    declared = quantization.declared(module) if quantization and len(shape) >= 2 else None
    # mlx-lm leaves modules whose width no group divides dense without saying so: no scales, no packing.
    if declared is None or f"{module}.scales" not in tensors:
        _require(tensors, folder, name, shape, tuple(_FLOATS))
        return None
    *above, columns = shape
    # The shapes decide, as in mlx-lm: tools that mix bits do not list every module in config.json.
    packing = _packing_by_shape(tensors, folder, module, columns) or declared
    _require(tensors, folder, name, (*above, columns * packing.bits // 32), ("U32",))
    for part in ("scales", "biases"):
        _require(tensors, folder, f"{module}.{part}", (*above, columns // packing.group_size), tuple(_FLOATS))
    return packing


def _packing_by_shape(tensors: Tensors, folder: Path, module: str, columns: int) -> Packing | None:
    """The only packing of `columns` numbers a row that gives these widths; None when there is none."""
    widths = [_find(tensors, folder, f"{module}.{part}").shape[-1:] for part in ("weight", "scales")]
    for bits in SUPPORTED_BITS:
        for group_size in SUPPORTED_GROUP_SIZES:
            fits = columns % group_size == 0
            if fits and widths == [(columns * bits // 32,), (columns // group_size,)]:
                return Packing(bits, group_size)
    return None


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


def _read(tensors: Tensors, plan: Plan, dtype: mx.Dtype) -> dict[str, Weight]:
    lazy = _open(tensors, plan)
    weights: dict[str, Weight] = {}
    for name, packing in plan.items():
        # Popped, so that after its cast nobody holds the stored copy: one tensor at a time exists twice.
        stored = lazy.pop(name)
        if packing is None:
            weights[name] = _cast(stored, dtype)
            continue
        module = name.removesuffix(".weight")
        scales, biases = (_cast(lazy.pop(f"{module}.{part}"), dtype) for part in ("scales", "biases"))
        mx.eval(stored)
        weights[name] = QuantizedWeights(stored, scales, biases, packing.group_size, packing.bits)
    return weights


def _open(tensors: Tensors, plan: Plan) -> dict[str, mx.array]:
    """The planned tensors, not yet read from disk."""
    modules = [name.removesuffix(".weight") for name, packing in plan.items() if packing is not None]
    wanted = {*plan, *(f"{module}.{part}" for module in modules for part in ("scales", "biases"))}
    lazy: dict[str, mx.array] = {}
    for path in sorted({tensors[name].path for name in wanted}):
        try:
            content = mx.load(str(path))
        except RuntimeError as error:
            raise UserError(f"{path}: MLX cannot read it ({one_line(error)}): fetch the file again") from None
        assert isinstance(content, dict)
        lazy |= {name: array for name, array in content.items() if name in wanted}
    return lazy


def _cast(stored: mx.array, dtype: mx.Dtype) -> mx.array:
    array = stored.astype(dtype)
    del stored
    mx.eval(array)
    return array
