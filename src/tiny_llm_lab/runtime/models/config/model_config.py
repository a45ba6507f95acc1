"""Configurations of models from `config.json`: what all have, rotary positions, and what a hybrid adds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tiny_llm_lab.runtime.models.config.config_keys import (
    OTHER_CHECKPOINT,
    positions_in_one_chunk,
    refuse_sliding_window,
    refuse_variants,
    warn_of_unknown_keys,
)
from tiny_llm_lab.runtime.models.config.fields import LARGEST, Fields, read_json
from tiny_llm_lab.runtime.models.config.picture_config import read_pictures
from tiny_llm_lab.runtime.models.weights.quantization import Quantization, listed, read_quantization
from tiny_llm_lab.types import (
    DeltaNetSizes,
    HybridConfig,
    MixerKind,
    ModelConfig,
    RopeScaling,
    UserError,
    yarn_magnitude,
)

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
    "llama3": _COMMON | {"factor", "low_freq_factor", "high_freq_factor", _ORIGINAL},
}


class RopeConfig(NamedTuple):
    """The base of the rotations, how they are stretched, and the number of positions that results."""

    theta: float
    scaling: RopeScaling | None
    max_position_embeddings: int


def read_rope(content: Fields) -> RopeConfig:
    """What `content`, a config.json, says about rotary positions; UserError for the unknown.

    With yarn the positions are at least factor * original_max_position_embeddings: model cards add yarn to a
    config.json whose max_position_embeddings they leave alone.
    """
    parts = {name: content.inner(name) for name in _PLACES}
    everywhere = [content, *parts.values()]
    if any(part.get("partial_rotary_factor") not in (None, 1) for part in everywhere):
        raise content.refused("partial_rotary_factor is not supported", OTHER_CHECKPOINT)
    stated = content.agreed("rope_theta", [part.get("rope_theta") for part in everywhere])
    theta = stated.number("rope_theta")
    positions = content.count("max_position_embeddings")
    kinds = {name: _kind(name, part) for name, part in parts.items()}
    scaled = [name for name in _PLACES if kinds[name] != "default"]
    if len({_settings(parts[name]) for name in scaled}) > 1:
        raise content.refused("rope_parameters and rope_scaling differ")
    if not scaled:
        return RopeConfig(theta, None, positions)
    name, part = scaled[0], parts[scaled[0]]
    original = content.agreed(_ORIGINAL, [content.get(_ORIGINAL), part.get(_ORIGINAL)])
    if kinds[name] == "linear":
        return RopeConfig(theta, RopeScaling("linear", part.number("factor"), positions), positions)
    if kinds[name] == "dynamic":
        # Its frequencies change only after max_position_embeddings, where we serve no text.
        if original.get(_ORIGINAL) not in (None, positions):
            message = f"{name} of type 'dynamic' with another {_ORIGINAL} than max_position_embeddings"
            raise content.refused(f"{message} is not supported", OTHER_CHECKPOINT)
        return RopeConfig(theta, None, positions)
    if not original:
        message = f"{name} of type {kinds[name]!r} needs {_ORIGINAL}"
        raise content.refused(message, "add it, the context length of the first training")
    first_length = original.count(_ORIGINAL)
    if kinds[name] == "llama3":
        return RopeConfig(theta, _llama3(part, first_length), positions)
    scaling = _yarn(part, first_length)
    reached = int(scaling.factor * scaling.original_max_position_embeddings)
    if reached > LARGEST:
        raise content.refused(f"factor * {_ORIGINAL} must be at most {LARGEST} positions")
    return RopeConfig(theta, scaling, max(positions, reached))


def _kind(name: str, part: Fields) -> str:
    """The type that `part` states; UserError for one that is not known, or with keys that are not."""
    kind = part.get("rope_type") or part.get("type") or "default"
    if (part.get("type") or kind) != kind:
        raise part.refused(f"rope_type and type in {name} differ")
    if kind not in _KEYS:
        # We don't advise to remove it: weights trained with it would give wrong answers silently.
        raise part.refused(f"{name} of type {kind!r} is not supported", _WITHOUT)
    if unknown := sorted(part.keys() - _KEYS[kind]):
        raise part.refused(f"{unknown[0]} in {name} of type {kind!r} is not supported", _WITHOUT)
    return str(kind)


def _llama3(part: Fields, original: int) -> RopeScaling:
    names = ("factor", "high_freq_factor", "low_freq_factor")
    factor, fast, slow = (part.number(name) for name in names)
    if fast <= slow:
        raise part.refused("high_freq_factor must be above low_freq_factor")
    return RopeScaling("llama3", factor, original, beta_fast=fast, beta_slow=slow)


def _yarn(part: Fields, original: int) -> RopeScaling:
    factor = part.number("factor")
    # As transformers reads them: mscale counts only together with mscale_all_dim.
    magnitude = yarn_magnitude(factor)
    if part.get("mscale") and part.get("mscale_all_dim"):
        weights = (part.number(key) for key in ("mscale", "mscale_all_dim"))
        above, below = (yarn_magnitude(factor, weight) for weight in weights)
        magnitude = above / below
    return RopeScaling(
        "yarn",
        factor,
        original,
        part.number("attention_factor", magnitude),
        part.number("beta_fast", 32.0),
        part.number("beta_slow", 1.0),
        part.flag("truncate", True),
    )


def _settings(part: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """What a part states, whatever its order and whichever name its type goes by."""
    rest = {key: value for key, value in part.items() if key not in _COMMON and value is not None}
    return frozenset((key, repr(value)) for key, value in rest.items()) | {
        ("type", str(part.get("rope_type") or part.get("type")))
    }


HYBRID_TYPES: Final = ("qwen3_5", "qwen3_5_moe", "qwen3_next")
# A draft layer that is shipped alone; mlx-vlm gives it the first name for each family.
DRAFT_TYPES: Final = tuple(f"{family}_mtp" for family in HYBRID_TYPES)
# Models that read pictures too, and what their text model is; pictures are not served.
PICTURE_TYPES: Final = {"qwen2_5_vl": "qwen2", "qwen3_vl": "qwen3", "qwen3_vl_moe": "qwen3_moe"}
_TEXT: Final = "_text"
# Of pictures: text has the same position in all three sections.
_OF_PICTURES: Final = ("mrope_section", "mrope_interleaved")
_ROTARY: Final = "partial_rotary_factor"
# As transformers takes them where a file says nothing.
_INTERVAL, _ROTARY_FACTOR = 4, 0.25
# Values of keys that would change the numbers; None is a key that is missing.
_ONLY: Final[Mapping[str, tuple[object, ...]]] = {
    "attn_output_gate": (None, True),
    "output_gate_type": (None, "swish", "silu"),
    "mamba_ssm_dtype": (None, "float32"),
    "mtp_use_dedicated_embeddings": (None, False),
}


def text_content(content: Fields) -> Fields:
    """The keys of a text model: those of `text_config` before those beside it; others as they are.

    `model_type` is that of the text model, without "_text". Raises UserError where the two state different
    ones.
    """
    types = {**{each: each for each in HYBRID_TYPES}, **PICTURE_TYPES}
    families = {f"{family}{ending}": text for family, text in types.items() for ending in ("", _TEXT)}
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in families:
        return content
    inner = content.inner("text_config")
    merged = Fields(content.path, content | {key: value for key, value in inner.items() if value is not None})
    stated = [families[kind], families.get(str(inner.get("model_type", kind)), inner.get("model_type"))]
    merged |= content.agreed("model_type", stated)
    if kind.removesuffix(_TEXT) == "qwen3_vl_moe":
        merged.setdefault("norm_topk_prob", True)  # transformers always divides
    if merged["model_type"] == "qwen3_5_moe":
        # Every layer has experts and nothing else, whose size a file need not state.
        merged.setdefault("intermediate_size", merged.get("shared_expert_intermediate_size"))
        if merged.get("decoder_sparse_step") not in (None, 1) or merged.get("mlp_only_layers"):
            message = "dense layers (decoder_sparse_step, mlp_only_layers) in qwen3_5_moe are not supported"
            raise content.refused(message, OTHER_CHECKPOINT)
        if merged.get("norm_topk_prob") is False:
            # transformers has no such key in this type and always divides.
            message = "norm_topk_prob false is not supported in qwen3_5_moe"
            raise content.refused(message, "remove the line, as its weights are always normalised")
    return merged


def without_own_keys(content: Fields, is_hybrid: bool) -> Fields:
    """`content` as a model of text with attention alone would state it: for the checks that all share."""
    left_out = ("layer_types", _ROTARY) if is_hybrid else ()
    rest = Fields(content.path, {key: value for key, value in content.items() if key not in left_out})
    for name in _PLACES:
        if isinstance(rest.get(name), dict):
            part = {key: value for key, value in rest[name].items() if key not in (*left_out, *_OF_PICTURES)}
            rest[name] = {key: value for key, value in part.items() if value != "mrope"}
    return rest


def read_hybrid(content: Fields) -> HybridConfig:
    """The layers of a hybrid, from the keys of its text model; UserError for what cannot be computed."""
    for name, values in _ONLY.items():
        if content.get(name) not in values:
            raise content.refused(f"{name} {content[name]!r} is not supported", OTHER_CHECKPOINT)
    return HybridConfig(
        mixers=_mixers(content),
        delta_net=_delta_net(content),
        rotary_dims=_rotary_dims(content),
    )


def _mixers(content: Fields) -> tuple[MixerKind, ...]:
    num_layers = content.count("num_hidden_layers")
    listed = content.list_of(str, "layer_types")
    if unknown := sorted(set(listed) - {"full_attention", "linear_attention"}):
        raise content.refused(f"layer_types with {unknown[0]!r} is not supported", OTHER_CHECKPOINT)
    interval = content.count("full_attention_interval", _INTERVAL)
    kinds: tuple[MixerKind, ...] = tuple(
        "linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(num_layers)
    )
    if "full_attention" not in (listed or kinds):
        message = "a hybrid needs a layer with full_attention, and this one has none"
        raise content.refused(message, "correct layer_types or full_attention_interval")
    if not listed:
        return kinds
    if len(listed) != num_layers:
        raise content.refused(f"layer_types names {len(listed)} of {num_layers} layers")
    if content.get("full_attention_interval") is not None and tuple(listed) != kinds:
        raise content.refused("layer_types and full_attention_interval differ")
    return tuple("full_attention" if kind == "full_attention" else "linear_attention" for kind in listed)


def _delta_net(content: Fields) -> DeltaNetSizes:
    sizes = DeltaNetSizes(
        num_key_heads=content.count("linear_num_key_heads"),
        num_value_heads=content.count("linear_num_value_heads"),
        key_head_dim=content.count("linear_key_head_dim"),
        value_head_dim=content.count("linear_value_head_dim"),
        conv_kernel=content.count("linear_conv_kernel_dim"),
    )
    if sizes.num_value_heads % sizes.num_key_heads:
        message = f"{sizes.num_value_heads} value heads cannot share {sizes.num_key_heads} key heads"
        raise content.refused(message, "correct linear_num_value_heads")
    if sizes.conv_kernel < 2:
        # Of one tap nothing tells the two layouts of its weights apart.
        raise content.refused("linear_conv_kernel_dim 1 is not supported", OTHER_CHECKPOINT)
    return sizes


def _rotary_dims(content: Fields) -> int:
    places = [content, *(content.inner(name) for name in _PLACES)]
    stated = content.agreed(_ROTARY, [place.get(_ROTARY) for place in places])
    factor, head_dim = stated.number(_ROTARY, _ROTARY_FACTOR), content.count("head_dim")
    dims = int(head_dim * factor)
    if not 2 <= dims <= head_dim or dims % 2:
        message = f"{_ROTARY} {factor} of head_dim {head_dim} gives {dims} dimensions to rotate"
        raise content.refused(f"{message}, not an even number of 2 to {head_dim}", "correct it")
    return dims


MODEL_TYPES = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", *HYBRID_TYPES, "llama")
SHARED_EXPERT_TYPES: Final = ("qwen2_moe", "qwen3_5_moe", "qwen3_next")
EXPERT_TYPES: Final = ("qwen3_moe", *SHARED_EXPERT_TYPES)


def read_config(path: Path, content: dict[str, Any] | None = None) -> tuple[ModelConfig, Quantization | None]:
    """Architecture and quantization from the config.json at `path`, or from its `content`.

    Raises UserError for one that is damaged or that describes a model we cannot run. Every key that can
    change the numbers is read or refused; keys that are not known are named on stderr.
    """
    stated = read_json(path) if content is None else Fields(path, content)
    text = text_content(stated)
    model_type = text.get("model_type")
    has_pictures = str(stated.get("model_type")).removesuffix(_TEXT) in PICTURE_TYPES
    if model_type not in MODEL_TYPES:
        raise _unknown(stated, model_type)
    is_hybrid = model_type in HYBRID_TYPES
    hybrid = read_hybrid(text) if is_hybrid else None
    common = without_own_keys(text, is_hybrid) if is_hybrid or has_pictures else text
    refuse_variants(common)
    counts: dict[str, Any] = {name: text.count(name) for name in _COUNTS}
    rope = read_rope(common)
    positions = positions_in_one_chunk(text, rope.max_position_embeddings)
    refuse_sliding_window(common, positions)
    config = ModelConfig(
        model_type=model_type,
        **counts,
        num_key_value_heads=text.count("num_key_value_heads", counts["num_attention_heads"]),
        head_dim=_head_dim(text),
        rms_norm_eps=text.number("rms_norm_eps"),
        rope_theta=rope.theta,
        max_position_embeddings=positions,
        rope_scaling=rope.scaling,
        tie_word_embeddings=text.flag("tie_word_embeddings"),
        qkv_bias=model_type == "qwen2" or (model_type == "qwen2_moe" and text.flag("qkv_bias", True)),
        qk_norm=model_type not in ("qwen2", "qwen2_moe", "llama"),
        hybrid=hybrid,
        pictures=read_pictures(stated, text),
        **(_experts(text, is_hybrid) if model_type in EXPERT_TYPES else {}),
    )
    _require_shared_heads(text, config)
    quantization = read_quantization(text)
    warn_of_unknown_keys(text, is_hybrid or has_pictures)
    return config, quantization


def _unknown(content: Fields, model_type: object) -> UserError:
    if model_type in DRAFT_TYPES:
        cure = f"name its model, with --speculate mtp:{content.path.parent}"
        return content.refused(f"model_type {model_type!r} is a draft layer without its model", cure)
    types = listed((*MODEL_TYPES, *PICTURE_TYPES))
    return content.refused(
        f"model_type {model_type!r} is not supported", f"{OTHER_CHECKPOINT}, of type {types}"
    )


_COUNTS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


def _experts(content: Fields, is_normalised: bool) -> dict[str, Any]:
    """What a mixture of experts adds; `is_normalised` is what no `norm_topk_prob` means."""
    # transformers 5 saves it under another name.
    stated = [content.get(name) for name in ("num_experts", "num_local_experts")]
    num_experts = content.agreed("num_experts", stated).count("num_experts")
    per_token = content.count("num_experts_per_tok")
    if per_token > num_experts:
        message = f"a token cannot use {per_token} of {num_experts} experts"
        raise content.refused(message, "correct num_experts_per_tok")
    shared, has_shared = "shared_expert_intermediate_size", content["model_type"] in SHARED_EXPERT_TYPES
    return {
        shared: content.count(shared) if has_shared else 0,
        "num_experts": num_experts,
        "num_experts_per_tok": per_token,
        "moe_intermediate_size": content.count("moe_intermediate_size"),
        "norm_topk_prob": content.flag("norm_topk_prob", is_normalised),
        "decoder_sparse_step": content.count("decoder_sparse_step", 1),
        "mlp_only_layers": tuple(content.list_of(int, "mlp_only_layers")),
    }


def _require_shared_heads(content: Fields, config: ModelConfig) -> None:
    queries, keys = config.num_attention_heads, config.num_key_value_heads
    if queries % keys:
        message = f"{queries} query heads cannot be split over {keys} kv heads"
        raise content.refused(message, "correct num_key_value_heads")


def _head_dim(content: Fields) -> int:
    if content.get("head_dim") is not None:
        return content.count("head_dim")
    hidden, heads = content.count("hidden_size"), content.count("num_attention_heads")
    if hidden % heads:
        raise content.refused(f"hidden_size {hidden} does not split into {heads} heads", "add head_dim")
    return hidden // heads
