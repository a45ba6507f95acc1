"""The tensors of a checkpoint: where they are, whether they fit the model, and how we load them."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx

from tiny_llm_lab.runtime.models.config.fields import one_line
from tiny_llm_lab.runtime.models.weights.layout import (
    DRAFTS,
    EMBEDDING,
    FLOAT32,
    NORM,
    Layout,
    ParameterShape,
    draft_shapes,
    evaluated,
    has_pictures,
    of_its_own,
    parameter_shapes,
    split_experts,
    stack_experts,
    stored_shapes,
    text_name,
    text_tensors,
    unify,
)
from tiny_llm_lab.runtime.models.weights.quantization import (
    AFFINE_PACKINGS,
    FLOAT_PACKINGS,
    Fp8Blocks,
    Packing,
    Quantization,
    Storage,
)
from tiny_llm_lab.runtime.models.weights.safetensors_file import TensorInfo, find_tensors, hold_the_same
from tiny_llm_lab.runtime.models.weights.tower_layout import PATCHES, TOWER
from tiny_llm_lab.types import ModelConfig, QuantizationMode, QuantizedWeights, UserError, Weight

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


# Older versions of transformers saved what follows from the configuration anyway.
_ROTARY_TABLE = "rotary_emb.inv_freq"
_HEAD = "lm_head."
_BELONGING = "use the config.json that belongs to these weights"


def refuse_leftovers(tensors: Mapping[str, TensorInfo], used: Set[str], config: ModelConfig) -> None:
    """Raise UserError for a tensor that is not `used`: the model without it is not the one that was trained.

    Rotary tables may be there, and in a checkpoint with a tied head one that equals the embedding.
    """
    for name in sorted(tensors.keys() - used):
        if name.endswith(_ROTARY_TABLE):
            continue
        info = tensors[name]
        if config.tie_word_embeddings and name.startswith(_HEAD):
            shared = tensors.get(f"{EMBEDDING}.{name.removeprefix(_HEAD)}")
            if shared is None or not hold_the_same(info, shared):
                raise UserError(
                    f"{info.path}: {name} differs from {EMBEDDING} in dtype, shape or numbers, "
                    "but config.json has tie_word_embeddings true: set it to false to use that output head"
                )
            continue
        is_adapter = "lora" in name.lower()
        cure = "fuse the adapter into the weights first" if is_adapter else _BELONGING
        raise UserError(
            f"{info.path}: tensor {name} is not in the {config.model_type} model of config.json: {cure}"
        )


def load_weights(
    folder: Path,
    config: ModelConfig,
    quantization: Quantization | None,
    dtype: mx.Dtype | None,
    *,
    may_lack_head: bool = False,
) -> tuple[dict[str, Weight], mx.Dtype]:
    """The model's weights in `dtype`, or if None in the stored embedding's dtype, and that dtype.

    Names are those of `parameters`, however the files name the text model and store experts and the inputs of
    a gated delta net; a hybrid's norms have their 1. Those of its draft layer are there if it has one.
    With `may_lack_head` the names may begin after "model.", as an embedding model's do, which has no head.
    The header of every tensor is checked before the first is read. Raises UserError for a tensor that is
    missing, does not fit or is not part of the model, and for one with NaN or infinite numbers.
    """
    tensors = find_tensors(folder)
    if config.hybrid or has_pictures(tensors):
        tensors = text_tensors(tensors, folder, config)
        quantization = quantization and quantization.renamed(text_name)
    if config.pictures and not any(name.startswith(TOWER) for name in tensors):
        config = replace(config, pictures=None)
    if "embed_tokens.weight" in tensors and f"{EMBEDDING}.weight" not in tensors:
        if not may_lack_head:
            raise _is_embedder(folder)
        tensors = {f"model.{name}": info for name, info in tensors.items()}
        config = replace(config, tie_word_embeddings=True)  # so that nobody looks for a head
    drafts = {name: info for name, info in tensors.items() if name.startswith(DRAFTS)}
    tensors = {name: info for name, info in tensors.items() if name not in drafts}
    layout = Layout.of(tensors)
    if config.hybrid and layout.is_original is None:
        message = "no linear_attention layer and no format (pt or mlx) says whether its norms lack their 1"
        raise UserError(f"{folder}: {message}: save it again with transformers or mlx-lm")
    files = Files(folder, tensors, config, quantization)
    weights, loaded = _load(files, layout, list(parameter_shapes(config)), dtype)
    if drafts:
        weights |= load_drafts(files._replace(tensors=drafts), bool(layout.is_original), loaded)
    return weights, loaded


class Files(NamedTuple):
    """The tensors of a folder under our names, of a model or a draft layer of `config`."""

    folder: Path
    tensors: Tensors
    config: ModelConfig
    quantization: Quantization | None


def load_drafts(files: Files, is_original: bool, dtype: mx.Dtype) -> dict[str, Weight]:
    """The weights of a draft layer, whose tensors are named mtp.*; `is_original`: its norms lack their 1.

    Raises UserError as `load_weights`.
    """
    layout = replace(Layout.of(files.tensors), is_original=is_original)
    return _load(files, layout, list(draft_shapes(files.config)), dtype)[0]


def _load(
    files: Files, layout: Layout, parameters: list[tuple[str, ParameterShape]], dtype: mx.Dtype | None
) -> tuple[dict[str, Weight], mx.Dtype]:
    folder, tensors, config, quantization = files
    stored = stored_shapes(parameters, config, layout)
    plan = {name: checked_storage(tensors, folder, name, shape, quantization) for name, shape in stored}
    held = {tensor for name, storage in plan.items() for tensor in tensors_holding(name, storage)}
    refuse_leftovers(tensors, held, config)
    target = dtype or _stored_dtype(tensors)
    reader = _Reader(tensors, _open(tensors, held), target)
    weights = {name: reader.parameter(name, storage) for name, storage in plan.items()}
    split_experts(weights, layout.has_turned_experts)
    stack_experts(weights, parameters)
    if config.hybrid:
        unify(weights, config, layout)
    if isinstance(patches := weights.get(PATCHES), mx.array):
        by_colour = mx.moveaxis(patches, -1, 1) if layout.has_colours_last else patches
        weights[PATCHES] = of_its_own(by_colour.flatten(1))
    return weights, target


def _stored_dtype(tensors: Tensors) -> mx.Dtype:
    """The dtype of the embedding, or of its scales; of the last norm where neither says it."""
    names = (f"{EMBEDDING}.weight", f"{EMBEDDING}.scales", NORM)
    stored = (tensors[name].dtype for name in names if name in tensors)
    return next(FLOATS[dtype] for dtype in stored if dtype in FLOATS)


def _is_embedder(folder: Path) -> UserError:
    return UserError(
        f'{folder}: its tensor names do not begin with "model.", like an embedding model\'s: '
        "serve it with --task embed, or choose a checkpoint that generates text"
    )


class _Reader:
    """Takes tensors out of opened files, one at a time."""

    def __init__(self, tensors: Tensors, lazy: dict[str, mx.array], dtype: mx.Dtype) -> None:
        self._tensors, self._lazy, self._dtype = tensors, lazy, dtype

    def parameter(self, name: str, storage: Storage | None) -> Weight:
        """Parameter `name`, which is stored as `storage` says."""
        if storage is None:
            return self._cast(name, mx.float32 if name.endswith(FLOAT32) else None)
        module = name.removesuffix(".weight")
        if isinstance(storage, Fp8Blocks):
            scales = self._cast(f"{module}.{FP8_SCALES}", mx.float32)
            whole = from_fp8_blocks(self._lazy.pop(name), scales, storage)
            return self._finite(name, whole, self._dtype)
        bits, group_size, mode = storage
        if mode == "affine":
            scales, biases = self._cast(f"{module}.scales"), self._cast(f"{module}.biases")
            return QuantizedWeights(self._stored(name), scales, biases, group_size, bits)
        scales = self._float8_scales(f"{module}.scales", mode)
        words = self._stored(name)
        return QuantizedWeights(words, scales, None, group_size, bits, mode=mode, dtype=self._dtype)

    def _finite(self, name: str, stored: mx.array, dtype: mx.Dtype) -> mx.array:
        cast = evaluated(stored.astype(dtype))
        if is_finite(cast):
            return cast
        if not is_finite(stored):
            raise self._not_finite(name)
        message = f"tensor {name} has numbers outside the range of {str(dtype).rpartition('.')[2]}"
        raise UserError(f"{self._tensors[name].path}: {message}: choose another --dtype")

    def _float8_scales(self, name: str, mode: QuantizationMode) -> mx.array:
        scales = self._stored(name)
        # E4M3 has a sign and a scale does not; in both formats all ones are NaN.
        is_wrong = mx.any(scales >= 127 if mode == "nvfp4" else scales == 255)
        if is_wrong.item():
            raise self._not_finite(name)
        return scales

    def _not_finite(self, name: str) -> UserError:
        path = self._tensors[name].path
        return UserError(f"{path}: tensor {name} has NaN or infinite numbers: fetch the file again")

    # Popped, so that nothing holds the stored copy after the cast and only one tensor exists twice.
    def _cast(self, name: str, dtype: mx.Dtype | None = None) -> mx.array:
        return self._finite(name, self._lazy.pop(name), dtype or self._dtype)

    def _stored(self, name: str) -> mx.array:
        return evaluated(self._lazy.pop(name))


def from_fp8_blocks(stored: mx.array, scales: mx.array, blocks: Fp8Blocks) -> mx.array:
    """stored [O, I] uint8, each a float E4M3, times the scale of its block, scales [O / rows, I / columns].

    Blocks at the lower and right edge may be cut. Float32.
    """
    rows, columns = stored.shape
    wide = mx.repeat(mx.repeat(scales, blocks.rows, axis=0)[:rows], blocks.columns, axis=1)[:, :columns]
    return mx.from_fp8(stored, dtype=mx.float32) * wide


def is_finite(array: mx.array) -> bool:
    """Whether no number of an array of floats is NaN or infinite."""
    # These have the largest bits of either sign, and integers are compared five times as fast as floats are
    # added.
    signed, unsigned = (mx.int16, mx.uint16) if array.itemsize == 2 else (mx.int32, mx.uint32)
    infinity = mx.array([mx.inf], array.dtype)
    is_below = mx.max(array.view(signed)) < infinity.view(signed)
    return bool((is_below & (mx.max(array.view(unsigned)) < (-infinity).view(unsigned))).item())


def _open(tensors: Tensors, wanted: Set[str]) -> dict[str, mx.array]:
    """The `wanted` tensors, not yet read from disk."""
    lazy: dict[str, mx.array] = {}
    by_stored_name = {tensors[name].name: name for name in wanted}
    for path in sorted({tensors[name].path for name in wanted}):
        try:
            content = mx.load(str(path))
        except RuntimeError as error:
            raise UserError(f"{path}: MLX cannot read it ({one_line(error)}): fetch the file again") from None
        assert isinstance(content, dict)
        lazy |= {
            by_stored_name[stored]: array for stored, array in content.items() if stored in by_stored_name
        }
    return lazy
