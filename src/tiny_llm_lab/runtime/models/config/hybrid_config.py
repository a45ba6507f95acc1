"""What a hybrid's `config.json` says: gated delta nets, gated attention, and where the text's keys are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tiny_llm_lab.runtime.models.config.config_keys import OTHER_CHECKPOINT
from tiny_llm_lab.runtime.models.config.fields import (
    FILE_AGAIN,
    agreed,
    count_of,
    list_of,
    number_of,
    object_of,
)
from tiny_llm_lab.types import DeltaNetSizes, HybridConfig, MixerKind, UserError

HYBRID_TYPES: Final = ("qwen3_5", "qwen3_5_moe", "qwen3_next")
_TEXT: Final = "_text"
# Of pictures: text has the same position in all three sections.
_OF_PICTURES: Final = ("mrope_section", "mrope_interleaved")
_ROTARY: Final = "partial_rotary_factor"
_ROPES: Final = ("rope_parameters", "rope_scaling")
# As transformers takes them where a file says nothing.
_INTERVAL, _ROTARY_FACTOR = 4, 0.25
# Values of keys that would change the numbers; None is a key that is missing.
_ONLY: Final[Mapping[str, tuple[object, ...]]] = {
    "attn_output_gate": (None, True),
    "output_gate_type": (None, "swish", "silu"),
    "mamba_ssm_dtype": (None, "float32"),
    "mtp_use_dedicated_embeddings": (None, False),
}


def text_content(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a hybrid's text model: those of `text_config` before those beside it; others as they are.

    `model_type` loses its "_text". Raises UserError where the two state different ones.
    """
    families = {f"{family}{ending}": family for family in HYBRID_TYPES for ending in ("", _TEXT)}
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in families:
        return dict(content)
    inner = object_of(path, content, "text_config")
    merged = {**content, **{key: value for key, value in inner.items() if value is not None}}
    stated = [families[kind], families.get(str(inner.get("model_type", kind)), inner.get("model_type"))]
    merged["model_type"] = agreed(path, "model_type", stated)
    if merged["model_type"] == "qwen3_5_moe":
        # Every layer has experts and nothing else, whose size a file need not state.
        merged.setdefault("intermediate_size", merged.get("shared_expert_intermediate_size"))
        if merged.get("decoder_sparse_step") not in (None, 1) or merged.get("mlp_only_layers"):
            message = "dense layers (decoder_sparse_step, mlp_only_layers) in qwen3_5_moe are not supported"
            raise UserError(f"{path}: {message}: {OTHER_CHECKPOINT}")
        if merged.get("norm_topk_prob") is False:
            # transformers has no such key in this type and always divides.
            message = "norm_topk_prob false is not supported in qwen3_5_moe"
            raise UserError(f"{path}: {message}: remove the line, as its weights are always normalised")
    return merged


def without_hybrid_keys(content: Mapping[str, Any]) -> dict[str, Any]:
    """`content` as a model with attention alone would state it: for the checks that all models share."""
    rest = {key: value for key, value in content.items() if key not in ("layer_types", _ROTARY)}
    for name in _ROPES:
        if isinstance(rest.get(name), dict):
            left_out = (_ROTARY, *_OF_PICTURES)
            rest[name] = {key: value for key, value in rest[name].items() if key not in left_out}
    return rest


def read_hybrid(path: Path, content: Mapping[str, Any]) -> HybridConfig:
    """The layers of a hybrid, from the keys of its text model; UserError for what cannot be computed."""
    for name, values in _ONLY.items():
        if content.get(name) not in values:
            message = f"{name} {content[name]!r} is not supported"
            raise UserError(f"{path}: {message}: {OTHER_CHECKPOINT}")
    has_experts = content["model_type"] != "qwen3_5"
    shared = "shared_expert_intermediate_size"
    return HybridConfig(
        mixers=_mixers(path, content),
        delta_net=_delta_net(path, content),
        rotary_dims=_rotary_dims(path, content),
        shared_expert_intermediate_size=count_of(path, content, shared) if has_experts else 0,
    )


def _mixers(path: Path, content: Mapping[str, Any]) -> tuple[MixerKind, ...]:
    num_layers = count_of(path, content, "num_hidden_layers")
    listed = list_of(path, content, "layer_types", str)
    if unknown := sorted(set(listed) - {"full_attention", "linear_attention"}):
        raise UserError(f"{path}: layer_types with {unknown[0]!r} is not supported: {OTHER_CHECKPOINT}")
    interval = count_of(path, content, "full_attention_interval", _INTERVAL)
    kinds: tuple[MixerKind, ...] = tuple(
        "linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(num_layers)
    )
    if "full_attention" not in (listed or kinds):
        message = "a hybrid needs a layer with full_attention, and this one has none"
        raise UserError(f"{path}: {message}: correct layer_types or full_attention_interval")
    if not listed:
        return kinds
    if len(listed) != num_layers:
        raise UserError(f"{path}: layer_types names {len(listed)} of {num_layers} layers: {FILE_AGAIN}")
    if content.get("full_attention_interval") is not None and tuple(listed) != kinds:
        raise UserError(f"{path}: layer_types and full_attention_interval differ: {FILE_AGAIN}")
    return tuple("full_attention" if kind == "full_attention" else "linear_attention" for kind in listed)


def _delta_net(path: Path, content: Mapping[str, Any]) -> DeltaNetSizes:
    sizes = DeltaNetSizes(
        num_key_heads=count_of(path, content, "linear_num_key_heads"),
        num_value_heads=count_of(path, content, "linear_num_value_heads"),
        key_head_dim=count_of(path, content, "linear_key_head_dim"),
        value_head_dim=count_of(path, content, "linear_value_head_dim"),
        conv_kernel=count_of(path, content, "linear_conv_kernel_dim"),
    )
    if sizes.num_value_heads % sizes.num_key_heads:
        raise UserError(
            f"{path}: {sizes.num_value_heads} value heads cannot share {sizes.num_key_heads} key heads: "
            "correct linear_num_value_heads"
        )
    if sizes.conv_kernel < 2:
        # Of one tap nothing tells the two layouts of its weights apart.
        raise UserError(f"{path}: linear_conv_kernel_dim 1 is not supported: {OTHER_CHECKPOINT}")
    return sizes


def _rotary_dims(path: Path, content: Mapping[str, Any]) -> int:
    places = [content, *(object_of(path, content, name) for name in _ROPES)]
    stated = {_ROTARY: agreed(path, _ROTARY, [place.get(_ROTARY) for place in places])}
    factor, head_dim = number_of(path, stated, _ROTARY, _ROTARY_FACTOR), count_of(path, content, "head_dim")
    dims = int(head_dim * factor)
    if not 2 <= dims <= head_dim or dims % 2:
        raise UserError(
            f"{path}: {_ROTARY} {factor} of head_dim {head_dim} gives {dims} dimensions to rotate, not an "
            f"even number of 2 to {head_dim}: correct it"
        )
    return dims
