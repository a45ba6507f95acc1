"""How a model reads pictures, from its `config.json`."""

import math
from typing import Final

from tiny_llm_lab.runtime.models.config.fields import Fields
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


def read_pictures(content: Fields, text: Fields) -> PictureConfig | None:
    """The tower that `content` describes, whose text model is `text`; None for a model that reads text, and
    for a tower that we can't compute.
    """
    family = str(content.get("model_type")).removesuffix("_moe")
    if family not in _SECTIONS or not content.get("vision_config"):
        return None
    try:
        tower = content.inner("vision_config")
        config = _tower(content, tower, text, family)
        return config if _is_computed(config, tower, text) else None
    except UserError:
        return None  # its text may be right


def _tower(content: Fields, tower: Fields, text: Fields, family: str) -> PictureConfig:
    counts = {field: tower.count(name, default) for field, (name, default) in _COUNTS.items()}
    listed = tower.list_of(int, "deepstack_visual_indexes")
    return PictureConfig(
        token_id=content.count("image_token_id"),
        sections=_sections(text, _SECTIONS[family]),
        deep_layers=tuple(listed) if "deepstack_visual_indexes" in tower else _DEEP_LAYERS[family],
        **counts,
    )


def _sections(text: Fields, default: tuple[int, int, int]) -> tuple[int, int, int]:
    places = (text.inner(name) for name in ("rope_parameters", "rope_scaling"))
    stated = next((found for place in places if (found := place.list_of(int, "mrope_section"))), None)
    if stated is None:
        return default
    if len(stated) != 3 or min(stated) < 0:
        raise text.refused("mrope_section must have three counts")
    return stated[0], stated[1], stated[2]


def _is_computed(config: PictureConfig, tower: Fields, text: Fields) -> bool:
    width, layers = (text.count(name) for name in ("hidden_size", "num_hidden_layers"))
    deep = sorted({each for each in config.deep_layers if 0 <= each < config.num_layers})
    return (
        tower.get("hidden_act") in (None, _ACTIVATION)
        and tower.get("in_channels") in (None, 3)
        and tower.count("out_hidden_size", 3584) == width
        and config.hidden_size % (4 * config.num_heads) == 0
        and math.isqrt(config.num_positions) ** 2 == config.num_positions
        and deep == [*config.deep_layers]
        and len(deep) < layers
        and config.token_id < text.count("vocab_size")
    )
