"""A hybrid's tensors: the text's among those of a model that sees, and all layouts brought into one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

import mlx.core as mx

from tiny_llm_lab.runtime.console.talk import log
from tiny_llm_lab.runtime.models.weights.layout import (
    CONV,
    FUSED_BA,
    FUSED_QKVZ,
    Layout,
    evaluated,
    of_its_own,
    stored_shapes,
)
from tiny_llm_lab.runtime.models.weights.parameters import DELTA_NET, DRAFTS, draft_shapes
from tiny_llm_lab.runtime.models.weights.safetensors_file import TensorInfo
from tiny_llm_lab.types import DeltaNetSizes, ModelConfig, QuantizedWeights, UserError, Weight

# Gates of a delta net, one number a head: float32 in any model, because they are exponents.
FLOAT32: Final = (f"{DELTA_NET}.A_log", f"{DELTA_NET}.dt_bias")
NORMS: Final = ("norm.weight", "norm_embedding.weight", "norm_hidden.weight")
_VISION: Final = ("model.visual.", "visual.", "vision_tower.", "model.vision_tower.")
# What stands in front of the text model's names: as transformers saves both models, and as MLX does.
_PREFIXES: Final = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.", ""),
)


def text_name(name: str) -> str:
    """The name of a tensor or module as a model without pictures has it: model.layers.0, lm_head, mtp."""
    for before, after in _PREFIXES:
        if name.startswith(before):
            return after + name.removeprefix(before)
    return name


def text_tensors(
    tensors: Mapping[str, TensorInfo], folder: Path, config: ModelConfig
) -> dict[str, TensorInfo]:
    """The tensors of the text model and of its draft layer by `text_name`; one line on stderr says what else
    there is, parts of a draft layer among it.

    Raises UserError for two tensors of one name.
    """
    results: dict[str, TensorInfo] = {}
    num_pictures = 0
    for stored, info in tensors.items():
        name = text_name(stored)
        if stored.startswith(_VISION):
            num_pictures += 1
        elif name in results:
            raise UserError(
                f"{folder}: tensors {results[name].name} and {stored} are the same parameter: "
                "remove the file that is not the model's"
            )
        else:
            results[name] = info
    parts = [name for name in results if name.startswith(DRAFTS)]
    if _is_draft_layer({name: results[name] for name in parts}, config):
        parts = []
    for name in parts:
        del results[name]
    left_out = {
        "a vision tower, as only text is served": num_pictures,
        "a draft layer (mtp) that is not whole, or not alone": len(parts),
    }
    if message := [f"{count} tensors of {what}" for what, count in left_out.items() if count]:
        log(f"{folder}: left out: {'; '.join(message)}")
    return results


def _is_draft_layer(tensors: Mapping[str, TensorInfo], config: ModelConfig) -> bool:
    """Whether these are all tensors of one draft layer, packed or not, and no others."""
    wanted = {name for name, _ in stored_shapes(draft_shapes(config), config, Layout.of(tensors))}
    modules = {name.removesuffix(".weight") for name in wanted}
    known = {name for name in tensors if name in wanted or name.rpartition(".")[0] in modules}
    return wanted <= known == tensors.keys()


def unify(weights: dict[str, Weight], config: ModelConfig, layout: Layout) -> None:
    """Bring the weights of a hybrid, in place, into the layout that `parameter_shapes` has."""
    assert config.hybrid is not None
    sizes = config.hybrid.delta_net
    for name in list(weights):
        if name.endswith(FUSED_QKVZ):
            module, whole = name.removesuffix("qkvz.weight"), weights.pop(name)
            for part, rows in _rows_of_qkvz(sizes).items():
                weights[f"{module}{part}.weight"] = _rows(whole, rows)
        elif name.endswith(FUSED_BA):
            module, whole = name.removesuffix("ba.weight"), weights.pop(name)
            for part, rows in _rows_of_ba(sizes).items():
                weights[f"{module}{part}.weight"] = _rows(whole, rows)
        elif name.endswith(CONV):
            weights[name] = cast(mx.array, weights[name]).reshape(sizes.conv_dim, sizes.conv_kernel)
        elif layout.is_original and _adds_one(name):
            weight = cast(mx.array, weights[name])
            weights[name] = evaluated((weight.astype(mx.float32) + 1).astype(weight.dtype))


def _adds_one(name: str) -> bool:
    """Whether a norm multiplies by 1 + weight as it was trained; that within a delta net does not."""
    return name.endswith(NORMS) and not name.endswith(f"{DELTA_NET}.norm.weight")


def _rows_of_qkvz(sizes: DeltaNetSizes) -> dict[str, mx.array]:
    """Where in in_proj_qkvz the rows of in_proj_qkv and in_proj_z are: q, k, v and z of each key head."""
    per_head = sizes.value_dim // sizes.num_key_heads
    widths = (sizes.key_head_dim, sizes.key_head_dim, per_head, per_head)
    q, k, v, z = _interleaved(sizes.num_key_heads, widths)
    return {"qkv": mx.concatenate([q, k, v]), "z": z}


def _rows_of_ba(sizes: DeltaNetSizes) -> dict[str, mx.array]:
    per_head = sizes.num_value_heads // sizes.num_key_heads
    b, a = _interleaved(sizes.num_key_heads, (per_head, per_head))
    return {"b": b, "a": a}


def _interleaved(num_heads: int, widths: tuple[int, ...]) -> list[mx.array]:
    """The rows of each part, where every head has so many rows of each, one part behind the other."""
    starts = mx.arange(num_heads)[:, None] * sum(widths)
    return [
        (starts + sum(widths[:i]) + mx.arange(width)).reshape(-1).astype(mx.uint32)
        for i, width in enumerate(widths)
    ]


def _rows(w: Weight, rows: mx.array) -> Weight:
    if isinstance(w, QuantizedWeights):
        return w.mapped(lambda part: of_its_own(part[rows]))
    return of_its_own(w[rows])
