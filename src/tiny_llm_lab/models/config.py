"""`config.json` of a checkpoint folder -> ModelConfig and how its weights are quantized."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiny_llm_lab.types import ModelConfig, UserError

SUPPORTED = ("qwen2", "qwen3")
BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)


@dataclass(frozen=True)
class Packing:
    """Group size and bits of one quantized module."""

    group_size: int
    bits: int


@dataclass(frozen=True)
class Quantization:
    """The packing of a checkpoint; `overrides` names modules packed otherwise, None = left dense."""

    default: Packing
    overrides: dict[str, Packing | None]

    def of(self, module: str) -> Packing | None:
        return self.overrides.get(module, self.default)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; UserError naming the file when it is missing or damaged."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: give a folder in Hugging Face layout") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): download the checkpoint again") from None
    if not isinstance(data, dict):
        raise UserError(f"{path} does not hold a JSON object: download the checkpoint again")
    return data


def read_config(path: Path) -> tuple[ModelConfig, Quantization | None]:
    """Architecture and quantization of the checkpoint whose config.json is at `path`."""
    raw = read_json(path)
    _reject_unsupported(raw, path)
    try:
        return _model_config(raw), _quantization(raw, path)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        cure = "the checkpoint is incomplete, download it again"
        raise UserError(f"{path} lacks or garbles {error}: {cure}") from None


def _reject_unsupported(raw: dict[str, Any], path: Path) -> None:
    kind = raw.get("model_type")
    if kind not in SUPPORTED:
        raise UserError(f"{path}: model_type {kind!r} is not supported: choose one of {', '.join(SUPPORTED)}")
    scaling = _rope(raw).get("rope_type", _rope(raw).get("type", "default"))
    if scaling not in (None, "default"):
        raise UserError(f"{path}: rope scaling {scaling!r} is not supported: choose a checkpoint without it")
    if raw.get("use_sliding_window") and raw.get("sliding_window"):
        raise UserError(f"{path}: sliding-window attention is not supported: choose a checkpoint without it")
    if "quantization_config" in raw and "quantization" not in raw:
        method = raw["quantization_config"].get("quant_method", "unknown")
        raise UserError(f"{path}: quantization {method!r} is not supported: choose an MLX 4- or 8-bit one")


def _rope(raw: dict[str, Any]) -> dict[str, Any]:
    # transformers 5 writes rope_parameters; before it were rope_theta at the top and rope_scaling.
    return raw.get("rope_parameters") or raw.get("rope_scaling") or {}


def _model_config(raw: dict[str, Any]) -> ModelConfig:
    is_qwen2 = raw["model_type"] == "qwen2"
    heads, hidden = int(raw["num_attention_heads"]), int(raw["hidden_size"])
    return ModelConfig(
        model_type=raw["model_type"],
        vocab_size=int(raw["vocab_size"]),
        hidden_size=hidden,
        num_hidden_layers=int(raw["num_hidden_layers"]),
        num_attention_heads=heads,
        num_key_value_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or hidden // heads),
        intermediate_size=int(raw["intermediate_size"]),
        rms_norm_eps=float(raw["rms_norm_eps"]),
        rope_theta=float(raw.get("rope_theta") or _rope(raw)["rope_theta"]),
        max_position_embeddings=int(raw["max_position_embeddings"]),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=is_qwen2,
        qk_norm=not is_qwen2,
    )


def _quantization(raw: dict[str, Any], path: Path) -> Quantization | None:
    section = raw.get("quantization")
    if not section:
        return None
    overrides = {
        name: _packing(value, path) if isinstance(value, dict) else None
        for name, value in section.items()
        if isinstance(value, dict) or value is False
    }
    return Quantization(_packing(section, path), overrides)


def _packing(section: dict[str, Any], path: Path) -> Packing:
    mode = section.get("mode", "affine")
    packing = Packing(int(section["group_size"]), int(section["bits"]))
    if mode != "affine" or packing.bits not in BITS or packing.group_size not in GROUP_SIZES:
        raise UserError(
            f"{path}: {mode} quantization with {packing.bits} bits in groups of {packing.group_size} is not "
            f"supported: choose affine with bits {BITS} and groups {GROUP_SIZES}"
        )
    return packing
