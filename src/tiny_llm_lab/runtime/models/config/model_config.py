"""`config.json`: a checkpoint's architecture, and the ones that we cannot run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tiny_llm_lab.runtime.models.config.config_keys import (
    OTHER_CHECKPOINT,
    positions_in_one_chunk,
    refuse_sliding_window,
    refuse_variants,
    warn_of_unknown_keys,
)
from tiny_llm_lab.runtime.models.config.fields import (
    agreed,
    count_of,
    flag_of,
    list_of,
    number_of,
    require_file,
)
from tiny_llm_lab.runtime.models.config.hybrid_config import (
    HYBRID_TYPES,
    read_hybrid,
    text_content,
    without_hybrid_keys,
)
from tiny_llm_lab.runtime.models.config.rope_config import read_rope
from tiny_llm_lab.runtime.models.weights.quantization import Quantization, listed, read_quantization
from tiny_llm_lab.types import ModelConfig, UserError

MODEL_TYPES = ("qwen2", "qwen3", "qwen3_moe", *HYBRID_TYPES)
_WITH_EXPERTS = ("qwen3_moe", "qwen3_5_moe", "qwen3_next")
# The longest name every matrix of a model with numbered experts: about 30,000 names of 100 bytes.
_LARGEST: Final = 4 << 20


def read_json(path: Path, max_bytes: int = _LARGEST) -> dict[str, Any]:
    """The object in a JSON file of at most `max_bytes`; anything else is a UserError."""
    if require_file(path, "missing: name a folder with a complete checkpoint") > max_bytes:
        raise UserError(f"{path}: larger than {max_bytes} bytes: fetch the file again")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot read it ({one_line(error)}): fetch the file again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a JSON object: fetch the file again")
    return content


def one_line(error: BaseException) -> str:
    """The message of an exception, short enough for our one line."""
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else text[:157] + "..."


def read_config(path: Path, content: dict[str, Any] | None = None) -> tuple[ModelConfig, Quantization | None]:
    """Architecture and quantization from the config.json at `path`, or from its `content`.

    Raises UserError for one that is damaged or that describes a model we cannot run. Every key that can
    change the numbers is read or refused; keys that are not known are named on stderr.
    """
    content = text_content(path, read_json(path) if content is None else content)
    model_type = content.get("model_type")
    if model_type not in MODEL_TYPES:
        raise UserError(
            f"{path}: model_type {model_type!r} is not supported: "
            f"{OTHER_CHECKPOINT}, of type {listed(MODEL_TYPES)}"
        )
    is_hybrid = model_type in HYBRID_TYPES
    hybrid = read_hybrid(path, content) if is_hybrid else None
    common = without_hybrid_keys(content) if is_hybrid else content
    refuse_variants(path, common)
    counts: dict[str, Any] = {name: count_of(path, content, name) for name in _COUNTS}
    rope = read_rope(path, common)
    positions = positions_in_one_chunk(path, content, rope.max_position_embeddings)
    refuse_sliding_window(path, common, positions)
    config = ModelConfig(
        model_type=model_type,
        **counts,
        num_key_value_heads=count_of(path, content, "num_key_value_heads", counts["num_attention_heads"]),
        head_dim=_head_dim(path, content),
        rms_norm_eps=number_of(path, content, "rms_norm_eps"),
        rope_theta=rope.theta,
        max_position_embeddings=positions,
        rope_scaling=rope.scaling,
        tie_word_embeddings=flag_of(path, content, "tie_word_embeddings"),
        qkv_bias=model_type == "qwen2",
        qk_norm=model_type != "qwen2",
        hybrid=hybrid,
        **(_experts(path, content, is_hybrid) if model_type in _WITH_EXPERTS else {}),
    )
    if config.num_attention_heads % config.num_key_value_heads:
        raise UserError(
            f"{path}: {config.num_attention_heads} query heads cannot be split over "
            f"{config.num_key_value_heads} kv heads: correct num_key_value_heads"
        )
    quantization = read_quantization(path, content)
    warn_of_unknown_keys(path, content, is_hybrid)
    return config, quantization


_COUNTS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


def _experts(path: Path, content: Mapping[str, Any], is_normalised: bool) -> dict[str, Any]:
    """What a mixture of experts adds; `is_normalised` is what no `norm_topk_prob` means."""
    # transformers 5 saves it under another name.
    stated = [content.get(name) for name in ("num_experts", "num_local_experts")]
    num_experts = count_of(path, {"num_experts": agreed(path, "num_experts", stated)}, "num_experts")
    per_token = count_of(path, content, "num_experts_per_tok")
    if per_token > num_experts:
        raise UserError(
            f"{path}: a token cannot use {per_token} of {num_experts} experts: correct num_experts_per_tok"
        )
    return {
        "num_experts": num_experts,
        "num_experts_per_tok": per_token,
        "moe_intermediate_size": count_of(path, content, "moe_intermediate_size"),
        "norm_topk_prob": flag_of(path, content, "norm_topk_prob", is_normalised),
        "decoder_sparse_step": count_of(path, content, "decoder_sparse_step", 1),
        "mlp_only_layers": tuple(list_of(path, content, "mlp_only_layers", int)),
    }


def _head_dim(path: Path, content: Mapping[str, Any]) -> int:
    if content.get("head_dim") is not None:
        return count_of(path, content, "head_dim")
    hidden, heads = count_of(path, content, "hidden_size"), count_of(path, content, "num_attention_heads")
    if hidden % heads:
        raise UserError(f"{path}: hidden_size {hidden} does not split into {heads} heads: add head_dim")
    return hidden // heads
