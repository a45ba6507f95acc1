"""How a model reads pictures, from its `config.json`."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tiny_llm_lab.runtime.console.talk import log
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
    """The tower that `content` describes, whose text model is `text`; None for a model that reads text.

    One line on stderr says why a tower is not used. Raises UserError for what is no number or no list.
    """
    family = str(content.get("model_type")).removesuffix("_moe")
    tower = object_of(path, content, "vision_config")
    if family not in _SECTIONS or not tower:
        return None
    counts = {field: count_of(path, tower, name, default) for field, (name, default) in _COUNTS.items()}
    listed = list_of(path, tower, "deepstack_visual_indexes", int)
    deep = tuple(listed) if "deepstack_visual_indexes" in tower else _DEEP_LAYERS[family]
    config = PictureConfig(
        token_id=count_of(path, content, "image_token_id"),
        sections=_sections(path, text, _SECTIONS[family]),
        deep_layers=deep,
        **counts,
    )
    if (reason := _complaint(path, config, tower, text)) is not None:
        log(f"{path}: pictures are not read, as in vision_config {reason}")
        return None
    return config


def _sections(path: Path, text: Mapping[str, Any], default: tuple[int, int, int]) -> tuple[int, int, int]:
    places = (object_of(path, text, name) for name in ("rope_parameters", "rope_scaling"))
    stated = next((found for place in places if (found := list_of(path, place, "mrope_section", int))), None)
    if stated is None:
        return default
    if len(stated) != 3 or min(stated) < 0:
        raise UserError(f"{path}: mrope_section must have three counts: fetch the file again")
    return stated[0], stated[1], stated[2]


def _complaint(
    path: Path, config: PictureConfig, tower: Mapping[str, Any], text: Mapping[str, Any]
) -> str | None:
    """Why a tower can't be used, None if it can."""
    width, layers = (count_of(path, text, name) for name in ("hidden_size", "num_hidden_layers"))
    deep = sorted({each for each in config.deep_layers if 0 <= each < config.num_layers})
    faults = {
        f"hidden_act is not {_ACTIVATION}": tower.get("hidden_act") not in (None, _ACTIVATION),
        "in_channels is not 3": tower.get("in_channels") not in (None, 3),
        "out_hidden_size is not hidden_size": count_of(path, tower, "out_hidden_size", 3584) != width,
        "heads are no multiple of 4 wide": config.hidden_size % (4 * config.num_heads) > 0,
        "num_position_embeddings is no square": math.isqrt(config.num_positions) ** 2 != config.num_positions,
        "deepstack_visual_indexes are no rising layers, or too many": deep != [*config.deep_layers]
        or len(deep) >= layers,
        "image_token_id is not in the vocabulary": config.token_id >= count_of(path, text, "vocab_size"),
    }
    return next((reason for reason, is_so in faults.items() if is_so), None)
