"""`config.json`: what a checkpoint says about its architecture, and what we cannot run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiny_llm_lab.models.quantization import Quantization, listed, read_quantization
from tiny_llm_lab.types import ModelConfig, UserError

MODEL_TYPES = ("qwen2", "qwen3", "qwen3_moe")
_OTHER_CHECKPOINT = "choose another checkpoint"


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; anything else is a UserError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: not there: name a folder that holds a complete checkpoint") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read ({one_line(error)}): fetch the file again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds no JSON object: fetch the file again")
    return content


def one_line(error: BaseException) -> str:
    """The message of an exception, short enough to stand in a line of ours."""
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else text[:157] + "..."


def read_config(path: Path) -> tuple[ModelConfig, Quantization | None]:
    """Architecture and quantization from the config.json at `path`.

    Raises UserError for one that is damaged or that describes a model we cannot run.
    """
    content = read_json(path)
    model_type = content.get("model_type")
    if model_type not in MODEL_TYPES:
        raise UserError(
            f"{path}: model_type {model_type!r} is not supported: "
            f"{_OTHER_CHECKPOINT}, of type {listed(MODEL_TYPES)}"
        )
    _refuse_variants(path, content)
    counts: dict[str, Any] = {name: _count(path, content, name) for name in _COUNTS}
    config = ModelConfig(
        model_type=model_type,
        **counts,
        num_key_value_heads=_count(path, content, "num_key_value_heads", content.get("num_attention_heads")),
        head_dim=_head_dim(path, content),
        rms_norm_eps=_number(path, "rms_norm_eps", content.get("rms_norm_eps")),
        rope_theta=_rope_theta(path, content),
        tie_word_embeddings=bool(content.get("tie_word_embeddings", False)),
        qkv_bias=model_type == "qwen2",
        qk_norm=model_type != "qwen2",
        **(_experts(path, content) if model_type == "qwen3_moe" else {}),
    )
    if config.num_attention_heads % config.num_key_value_heads:
        raise UserError(
            f"{path}: {config.num_attention_heads} query heads cannot share "
            f"{config.num_key_value_heads} kv heads: correct num_key_value_heads"
        )
    return config, read_quantization(path, content)


_COUNTS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)


def _count(path: Path, content: Mapping[str, Any], name: str, default: Any = None) -> int:
    value = content.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{path}: {name} must be a whole number above 0, not {value!r}: fetch the file again")
    return value


def _number(path: Path, name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise UserError(f"{path}: {name} must be a number above 0, not {value!r}: fetch the file again")
    return float(value)


def _experts(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """What a mixture of experts adds to a configuration."""
    # transformers 5 saves it under another name.
    num_experts = _count(path, content, "num_experts", content.get("num_local_experts"))
    per_token = _count(path, content, "num_experts_per_tok")
    dense = content.get("mlp_only_layers") or []
    if per_token > num_experts:
        raise UserError(
            f"{path}: {per_token} experts per token of {num_experts}: correct num_experts_per_tok"
        )
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise UserError(f"{path}: mlp_only_layers must be a list of numbers: fetch the file again")
    return {
        "num_experts": num_experts,
        "num_experts_per_tok": per_token,
        "moe_intermediate_size": _count(path, content, "moe_intermediate_size"),
        "norm_topk_prob": bool(content.get("norm_topk_prob", False)),
        "decoder_sparse_step": _count(path, content, "decoder_sparse_step", 1),
        "mlp_only_layers": tuple(dense),
    }


def _head_dim(path: Path, content: Mapping[str, Any]) -> int:
    if content.get("head_dim") is not None:
        return _count(path, content, "head_dim")
    hidden, heads = _count(path, content, "hidden_size"), _count(path, content, "num_attention_heads")
    if hidden % heads:
        raise UserError(f"{path}: hidden_size {hidden} does not split into {heads} heads: add head_dim")
    return hidden // heads


def _rope_theta(path: Path, content: Mapping[str, Any]) -> float:
    # transformers 5 moved rope_theta into rope_parameters; older files have it at the top.
    nested = content.get("rope_parameters") or {}
    theta = nested.get("rope_theta") if isinstance(nested, dict) else None
    return _number(path, "rope_theta", content.get("rope_theta") if theta is None else theta)


def _refuse_variants(path: Path, content: Mapping[str, Any]) -> None:
    """Settings that would change the numbers and that no solution knows about."""
    for name in ("rope_scaling", "rope_parameters"):
        rope = content.get(name) or {}
        if not isinstance(rope, dict):
            raise UserError(f"{path}: {name} must be an object or null: fetch the file again")
        kind = rope.get("rope_type") or rope.get("type") or "default"
        if kind != "default":
            # No advice to remove it: weights that were trained with it would answer wrongly without a word.
            raise UserError(
                f"{path}: {name} of type {kind!r} is not supported: choose a checkpoint without it"
            )
        if rope.get("partial_rotary_factor", 1) != 1:
            raise UserError(f"{path}: partial_rotary_factor in {name} is not supported: {_OTHER_CHECKPOINT}")
    layer_types = content.get("layer_types") or []
    has_window = content.get("use_sliding_window") and content.get("sliding_window")
    if has_window or any(kind != "full_attention" for kind in layer_types):
        raise UserError(f"{path}: sliding-window attention is not supported: {_OTHER_CHECKPOINT}")
    if content.get("is_causal") is False:
        raise UserError(
            f"{path}: is_causal false, of embedding models, is not supported: "
            f"{_OTHER_CHECKPOINT}, one that generates text"
        )
    model_type = content.get("model_type")
    if model_type != "qwen2" and content.get("attention_bias"):
        raise UserError(f"{path}: attention_bias is not supported in {model_type}: {_OTHER_CHECKPOINT}")
    if content.get("hidden_act", "silu") != "silu":
        raise UserError(f"{path}: hidden_act {content['hidden_act']!r} is not supported: {_OTHER_CHECKPOINT}")
