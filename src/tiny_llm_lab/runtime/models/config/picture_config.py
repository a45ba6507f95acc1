"""How a model reads pictures, from its `config.json`."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tiny_llm_lab.runtime.models.config.fields import count_of, list_of, object_of
from tiny_llm_lab.types import UserError
from tiny_llm_lab.types.computing.pictures import PictureConfig

# Models whose pictures we read, and what transformers takes where a file says nothing.
_SECTIONS: Final = {"qwen3_vl": (24, 20, 20), "qwen3_5": (11, 11, 10)}
_DEEP_LAYERS: Final = {"qwen3_vl": (8, 16, 24), "qwen3_5": ()}
_ACTIVATION: Final = "gelu_pytorch_tanh"
_COUNTS: Final = {
    "num_layers": ("depth", 27),
    "hidden_size": ("hidden_size", 1152),
    "intermediate_size": ("intermediate_size", 4304),
    "num_heads": ("num_heads", 16),
    "patch_size": ("patch_size", 16),
    "merge": ("spatial_merge_size", 2),
    "num_frames": ("temporal_patch_size", 2),
    "num_positions": ("num_position_embeddings", 2304),
}


def read_pictures(path: Path, content: Mapping[str, Any], text: Mapping[str, Any]) -> PictureConfig | None:
    """The tower that `content` describes, whose text model is `text`; None for a model that reads text, and
    for a tower that we can't compute.
    """
    family = str(content.get("model_type")).removesuffix("_moe")
    if family not in _SECTIONS or not content.get("vision_config"):
        return None
    try:
        tower = object_of(path, content, "vision_config")
        config = _tower(path, content, tower, text, family)
        return config if _is_computed(path, config, tower, text) else None
    except UserError:
        return None  # its text may be right


def _tower(
    path: Path, content: Mapping[str, Any], tower: Mapping[str, Any], text: Mapping[str, Any], family: str
) -> PictureConfig:
    counts = {field: count_of(path, tower, name, default) for field, (name, default) in _COUNTS.items()}
    listed = list_of(path, tower, "deepstack_visual_indexes", int)
    return PictureConfig(
        token_id=count_of(path, content, "image_token_id"),
        sections=_sections(path, text, _SECTIONS[family]),
        deep_layers=tuple(listed) if "deepstack_visual_indexes" in tower else _DEEP_LAYERS[family],
        **counts,
    )


def _sections(path: Path, text: Mapping[str, Any], default: tuple[int, int, int]) -> tuple[int, int, int]:
    places = (object_of(path, text, name) for name in ("rope_parameters", "rope_scaling"))
    stated = next((found for place in places if (found := list_of(path, place, "mrope_section", int))), None)
    if stated is None:
        return default
    if len(stated) != 3 or min(stated) < 0:
        raise UserError(f"{path}: mrope_section must have three counts: fetch the file again")
    return stated[0], stated[1], stated[2]


def _is_computed(
    path: Path, config: PictureConfig, tower: Mapping[str, Any], text: Mapping[str, Any]
) -> bool:
    width, layers = (count_of(path, text, name) for name in ("hidden_size", "num_hidden_layers"))
    deep = sorted({each for each in config.deep_layers if 0 <= each < config.num_layers})
    return (
        tower.get("hidden_act") in (None, _ACTIVATION)
        and tower.get("in_channels") in (None, 3)
        and count_of(path, tower, "out_hidden_size", 3584) == width
        and config.hidden_size % (4 * config.num_heads) == 0
        and math.isqrt(config.num_positions) ** 2 == config.num_positions
        and deep == [*config.deep_layers]
        and len(deep) < layers
        and config.token_id < count_of(path, text, "vocab_size")
    )
