"""The tensors of a checkpoint: where they are, whether they fit the model, and how we load them."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx

from tiny_llm_lab.runtime.models.config.fields import AGAIN, one_line
from tiny_llm_lab.runtime.models.weights import layout
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
# Older versions of transformers saved what follows from the configuration anyway.
_ROTARY_TABLE = "rotary_emb.inv_freq"
_HEAD = "lm_head."
_BELONGING = "use the config.json that belongs to these weights"


class Files(NamedTuple):
    """The tensors of a folder under our names, of a model or a draft layer of `config`."""

    folder: Path
    tensors: Mapping[str, TensorInfo]
    config: ModelConfig
    quantization: Quantization | None

    def storage(self, name: str, shape: layout.ParameterShape) -> Storage | None:
        """How parameter `name` of logical `shape` is stored, None for dense; UserError if it does not fit."""
        module = name.removesuffix(".weight")
        declared = self.quantization.declared(module) if self.quantization and len(shape) >= 2 else None
        if isinstance(declared, Fp8Blocks) and f"{module}.{FP8_SCALES}" in self.tensors:
            self._require(name, shape, ("F8_E4M3",))
            blocks = (-(-shape[0] // declared.rows), -(-shape[1] // declared.columns))
            self._require(f"{module}.{FP8_SCALES}", blocks, tuple(FLOATS))
            return declared
        # mlx-lm leaves modules whose width no group divides dense without saying so: no scales, no packing.
        if isinstance(declared, Packing) and f"{module}.scales" in self.tensors:
            return self._checked_packing(module, shape, declared)
        self._require(name, shape, tuple(FLOATS))
        return None

    def _checked_packing(self, module: str, shape: layout.ParameterShape, declared: Packing) -> Packing:
        *above, columns = shape
        # The shapes decide, as in mlx-lm: tools that mix bits do not list every module in config.json.
        packing = self._packing_by_shape(module, columns) or declared
        is_affine = packing.mode == "affine"
        groups = (*above, columns // packing.group_size)
        self._require(f"{module}.weight", (*above, columns * packing.bits // 32), ("U32",))
        self._require(f"{module}.scales", groups, tuple(FLOATS) if is_affine else ("U8",))
        if is_affine:
            self._require(f"{module}.biases", groups, tuple(FLOATS))
        return packing

    def _packing_by_shape(self, module: str, columns: int) -> Packing | None:
        """The only packing of `columns` numbers a row that gives these tensors; None when there is none."""
        words, scales = (self._find(f"{module}.{part}") for part in ("weight", "scales"))
        for packing in FLOAT_PACKINGS if scales.dtype == "U8" else AFFINE_PACKINGS:
            widths = (columns * packing.bits // 32,), (columns // packing.group_size,)
            if columns % packing.group_size == 0 and (words.shape[-1:], scales.shape[-1:]) == widths:
                return packing
        return None

    def _find(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise UserError(f"{self.folder}: tensor {name} is missing: {AGAIN}")
        return self.tensors[name]

    def _require(self, name: str, shape: layout.ParameterShape, dtypes: tuple[str, ...]) -> None:
        info = self._find(name)
        if info.dtype not in dtypes or info.shape != shape:
            message = f"is {info.dtype} {list(info.shape)}, not {' or '.join(dtypes)} {list(shape)}"
            raise UserError(f"{info.path}: tensor {name} {message}: {_BELONGING}")

    def refuse_leftovers(self, used: Set[str]) -> None:
        """Raise UserError for a tensor that is not `used`: a model without it is another than was trained.

        Rotary tables may be there, and in a checkpoint with a tied head one that equals the embedding.
        """
        for name in sorted(self.tensors.keys() - used):
            if not name.endswith(_ROTARY_TABLE):
                self._refuse_leftover(name, self.tensors[name])

    def _refuse_leftover(self, name: str, info: TensorInfo) -> None:
        if self.config.tie_word_embeddings and name.startswith(_HEAD):
            shared = self.tensors.get(f"{layout.EMBEDDING}.{name.removeprefix(_HEAD)}")
            if shared is None or not hold_the_same(info, shared):
                message = f"{name} differs from {layout.EMBEDDING} in dtype, shape or numbers"
                stated = "but config.json has tie_word_embeddings true"
                cure = "set it to false to use that output head"
                raise UserError(f"{info.path}: {message}, {stated}: {cure}")
            return
        is_adapter = "lora" in name.lower()
        cure = "fuse the adapter into the weights first" if is_adapter else _BELONGING
        message = f"tensor {name} is not in the {self.config.model_type} model of config.json"
        raise UserError(f"{info.path}: {message}: {cure}")

    def stored_dtype(self) -> mx.Dtype:
        """The dtype of the embedding, or of its scales; of the last norm where neither says it."""
        names = (f"{layout.EMBEDDING}.weight", f"{layout.EMBEDDING}.scales", layout.NORM)
        stored = (self.tensors[name].dtype for name in names if name in self.tensors)
        return next(FLOATS[dtype] for dtype in stored if dtype in FLOATS)


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
    if config.hybrid or layout.has_pictures(tensors):
        tensors = layout.text_tensors(tensors, folder, config)
        quantization = quantization and quantization.renamed(layout.text_name)
    if config.pictures and not any(name.startswith(TOWER) for name in tensors):
        config = replace(config, pictures=None)
    if "embed_tokens.weight" in tensors and f"{layout.EMBEDDING}.weight" not in tensors:
        if not may_lack_head:
            raise _is_embedder(folder)
        tensors = {f"model.{name}": info for name, info in tensors.items()}
        config = replace(config, tie_word_embeddings=True)  # so that nobody looks for a head
    drafts = {name: info for name, info in tensors.items() if name.startswith(layout.DRAFTS)}
    tensors = {name: info for name, info in tensors.items() if name not in drafts}
    arrangement = layout.Layout.of(tensors)
    if config.hybrid and arrangement.is_original is None:
        message = "no linear_attention layer and no format (pt or mlx) says whether its norms lack their 1"
        raise UserError(f"{folder}: {message}: save it again with transformers or mlx-lm")
    files = Files(folder, tensors, config, quantization)
    weights, loaded = _load(files, arrangement, list(layout.parameter_shapes(config)), dtype)
    if drafts:
        weights |= load_drafts(files._replace(tensors=drafts), bool(arrangement.is_original), loaded)
    return weights, loaded


def load_drafts(files: Files, is_original: bool, dtype: mx.Dtype) -> dict[str, Weight]:
    """The weights of a draft layer, whose tensors are named mtp.*; `is_original`: its norms lack their 1.

    Raises UserError as `load_weights`.
    """
    arrangement = replace(layout.Layout.of(files.tensors), is_original=is_original)
    return _load(files, arrangement, list(layout.draft_shapes(files.config)), dtype)[0]


def _load(
    files: Files,
    arrangement: layout.Layout,
    parameters: list[tuple[str, layout.ParameterShape]],
    dtype: mx.Dtype | None,
) -> tuple[dict[str, Weight], mx.Dtype]:
    config = files.config
    stored = layout.stored_shapes(parameters, config, arrangement)
    plan = {name: files.storage(name, shape) for name, shape in stored}
    held = {tensor for name, storage in plan.items() for tensor in tensors_holding(name, storage)}
    files.refuse_leftovers(held)
    target = dtype or files.stored_dtype()
    reader = _Reader(files.tensors, _open(files.tensors, held), target)
    weights = {name: reader.parameter(name, storage) for name, storage in plan.items()}
    layout.split_experts(weights, arrangement.has_turned_experts)
    layout.stack_experts(weights, parameters)
    if config.hybrid:
        layout.unify(weights, config, arrangement)
    if isinstance(patches := weights.get(PATCHES), mx.array):
        by_colour = mx.moveaxis(patches, -1, 1) if arrangement.has_colours_last else patches
        weights[PATCHES] = layout.of_its_own(by_colour.flatten(1))
    return weights, target


def _is_embedder(folder: Path) -> UserError:
    return UserError(
        f'{folder}: its tensor names do not begin with "model.", like an embedding model\'s: '
        "serve it with --task embed, or choose a checkpoint that generates text"
    )


class _Reader:
    """Takes tensors out of opened files, one at a time."""

    def __init__(self, tensors: Mapping[str, TensorInfo], lazy: dict[str, mx.array], dtype: mx.Dtype) -> None:
        self._tensors, self._lazy, self._dtype = tensors, lazy, dtype

    def parameter(self, name: str, storage: Storage | None) -> Weight:
        """Parameter `name`, which is stored as `storage` says."""
        if storage is None:
            return self._cast(name, mx.float32 if name.endswith(layout.FLOAT32) else None)
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
        cast = layout.evaluated(stored.astype(dtype))
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
        return layout.evaluated(self._lazy.pop(name))


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


def _open(tensors: Mapping[str, TensorInfo], wanted: Set[str]) -> dict[str, mx.array]:
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
