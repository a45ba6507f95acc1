"""The tensors of a checkpoint: where they are, whether they fit the model, and as what they are loaded."""

from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path

import mlx.core as mx

from tiny_llm_lab.models.config import one_line
from tiny_llm_lab.models.experts import are_numbered, stack_experts, stored_shapes
from tiny_llm_lab.models.leftovers import refuse_leftovers
from tiny_llm_lab.models.parameters import EMBEDDING, ParameterShape
from tiny_llm_lab.models.quantization import SUPPORTED_BITS, SUPPORTED_GROUP_SIZES, Packing, Quantization
from tiny_llm_lab.models.safetensors_file import TensorInfo
from tiny_llm_lab.models.weight_files import find_tensors
from tiny_llm_lab.native import supports_packing
from tiny_llm_lab.types import ModelConfig, QuantizedWeights, UserError, Weight

_FLOATS = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}

Tensors = Mapping[str, TensorInfo]
# For every parameter: how it is packed, or None for a dense one.
Plan = Mapping[str, Packing | None]


def load_weights(
    folder: Path, config: ModelConfig, quantization: Quantization | None, dtype: mx.Dtype | None
) -> tuple[dict[str, Weight], mx.Dtype]:
    """The model's weights in `dtype`, or in that of the stored embedding when None; and that dtype.

    Names are the checkpoint's own, but experts are stacked however they are stored, as in `parameters`.
    The header of every tensor is checked before the first is read. Raises UserError for a tensor that is
    missing, does not fit or is not part of the model, and for norms, biases and scales that are not finite.
    """
    tensors = find_tensors(folder)
    _refuse_embedder(tensors, folder)
    plan = {
        name: _checked_packing(tensors, folder, name, shape, quantization)
        for name, shape in stored_shapes(config, are_numbered(tensors))
    }
    refuse_leftovers(tensors, _planned_tensors(plan), config)
    part = "weight" if plan[f"{EMBEDDING}.weight"] is None else "scales"
    target = dtype or _FLOATS[tensors[f"{EMBEDDING}.{part}"].dtype]
    weights = _read(tensors, plan, target)
    stack_experts(weights, config)
    return weights, target


def with_activation_bits(weights: Mapping[str, Weight], activation_bits: int) -> dict[str, Weight]:
    """The same weights; those that the kernels can multiply so, the packed ones of 4 bits, ask for it."""
    return {
        name: replace(weight, activation_bits=activation_bits)
        if isinstance(weight, QuantizedWeights)
        and weight.bits == 4
        and supports_packing(4, weight.group_size)
        else weight
        for name, weight in weights.items()
    }


def _refuse_embedder(tensors: Tensors, folder: Path) -> None:
    if "embed_tokens.weight" in tensors and f"{EMBEDDING}.weight" not in tensors:
        raise UserError(
            f'{folder}: its tensors have no "model." in front, as those of embedding models: '
            "choose a checkpoint that generates text"
        )


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


def _planned_tensors(plan: Plan) -> set[str]:
    """The tensors that hold the parameters of `plan`."""
    packed = [name.removesuffix(".weight") for name, packing in plan.items() if packing is not None]
    return {*plan, *(f"{module}.{part}" for module in packed for part in ("scales", "biases"))}


def _read(tensors: Tensors, plan: Plan, dtype: mx.Dtype) -> dict[str, Weight]:
    lazy = _open(tensors, _planned_tensors(plan))
    weights: dict[str, Weight] = {}

    def take(name: str) -> mx.array:
        # Popped, so that after its cast nothing holds the stored copy: one tensor at a time exists twice.
        return _cast(lazy.pop(name), dtype)

    def take_finite(name: str) -> mx.array:
        # Norms, biases and scales only: looking at every weight would take a tenth of the time of loading.
        if not _is_finite(lazy[name]):
            raise UserError(
                f"{tensors[name].path}: tensor {name} holds NaN or infinite numbers: fetch the file again"
            )
        return take(name)

    for name, packing in plan.items():
        if packing is None:
            weights[name] = take_finite(name) if len(tensors[name].shape) == 1 else take(name)
            continue
        module = name.removesuffix(".weight")
        scales, biases = (take_finite(f"{module}.{part}") for part in ("scales", "biases"))
        stored = lazy.pop(name)
        mx.eval(stored)
        weights[name] = QuantizedWeights(stored, scales, biases, packing.group_size, packing.bits)
    return weights


def _is_finite(array: mx.array) -> bool:
    # The sum is three times as fast, and finite only if every number is; but a sum of float16 may overflow.
    return bool(mx.isfinite(mx.sum(array)).item() or mx.all(mx.isfinite(array)).item())


def _open(tensors: Tensors, wanted: Set[str]) -> dict[str, mx.array]:
    """The `wanted` tensors, not yet read from disk."""
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
