"""What `fit` knows of a model before it is loaded: its configuration, and what its weights take."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

import mlx.core as mx

from tiny_llm_lab.runtime.memory import DeviceMemory, gpu_memory
from tiny_llm_lab.runtime.models.config.model_config import read_config
from tiny_llm_lab.runtime.models.random.config_json import config_json
from tiny_llm_lab.runtime.models.random.random_checkpoint import parameters_of, tensor_shapes
from tiny_llm_lab.runtime.models.random.shapes import parse_shape
from tiny_llm_lab.runtime.models.registry import HUB_IDS, RANDOM_PREFIX, SHIPPED
from tiny_llm_lab.runtime.models.weights.layout import text_name
from tiny_llm_lab.runtime.models.weights.safetensors_file import find_tensors
from tiny_llm_lab.runtime.models.weights.tower_layout import TOWER
from tiny_llm_lab.serving.options.engine_settings import EngineSettings
from tiny_llm_lab.types import ModelConfig, UserError

# Names whose architecture has the shape of another one, or a tower too.
_ALIKE: Final = {
    "qwen3-coder-30b-a3b": "qwen3-30b-a3b,positions=262144",
    "qwen3-coder-next": "qwen3-next-80b-a3b",
    "qwen3.5-0.8b": "qwen3.5-0.8b,tower=12,tower_width=768,tower_inner=3072,tower_heads=12",
    "qwen3.5-4b": "qwen3.5-4b,tower=24,tower_width=1024,tower_inner=4096",
    "qwen3.5-9b": "qwen3.5-9b,tower=27",
    "qwen3.6-27b": "qwen3.5-27b,tower=27",
    "qwen3.6-35b-a3b": "qwen3.5-35b-a3b,tower=27",
    "qwen3.8-27b": "qwen3.5-27b,tower=27",
}
_BYTES: Final = {"F32": 4, "BF16": 2, "U32": 4}
GIB: Final = 2**30


@dataclass(frozen=True)
class KnownModel:
    """A model that could be loaded; its weights take `weights` bytes as stored."""

    name: str
    config: ModelConfig
    weights: int
    bits: int
    tower: int = 0  # of them what reads pictures

    @property
    def text_alone(self) -> "KnownModel":
        """As --language-model-only loads it."""
        config = replace(self.config, pictures=None)
        return replace(self, config=config, weights=self.weights - self.tower, tower=0)

    def as_served(self, settings: EngineSettings) -> "KnownModel":
        """With a draft layer of another folder, and without what reads pictures, if so asked."""
        own = self.text_alone if settings.language_model_only else self
        layer = weights_bytes(settings.draft_layer) if settings.draft_layer else 0
        return replace(own, weights=own.weights + layer)

    @property
    def num_parameters(self) -> int:
        """About: as if all were stored with `bits`."""
        return 8 * self.weights // self.bits


def known_models() -> Iterator[KnownModel]:
    """Those with names of their own, one with 4 bits in place of the same with 16."""
    for name in HUB_IDS:
        if name.endswith("-4bit"):
            yield model_called(name)


@cache
def model_called(name: str) -> KnownModel:
    """The model called `name`: a name of `HUB_IDS`, a folder, or random:NAME. Nothing is downloaded.

    Raises UserError for another name, and for a folder without a configuration.
    """
    if name in HUB_IDS:
        base = name.removesuffix("-4bit")
        return replace(_random(_ALIKE.get(base, base) + (",bits=4" if name != base else "")), name=name)
    if name.startswith(RANDOM_PREFIX):
        return replace(_random(name.removeprefix(RANDOM_PREFIX)), name=name)
    folder = SHIPPED.get(name, Path(name).expanduser())
    if not folder.is_dir():
        raise UserError(
            f"fit does not know {name!r}: give one of {', '.join(HUB_IDS)}, a folder, or random:NAME"
        )
    config, quantization = read_config(folder / "config.json")
    return _known(name, config, getattr(quantization and quantization.default, "bits", 16), str(folder))


def _random(text: str) -> KnownModel:
    shape, name = parse_shape(text), f"{RANDOM_PREFIX}{text}"
    return _known(text, read_config(Path(name), config_json(shape))[0], shape.bits, name)


def _known(name: str, config: ModelConfig, bits: int, stored: str) -> KnownModel:
    sizes = _sizes(stored)
    tower = sum(size for tensor, size in sizes.items() if tensor.startswith(TOWER))
    whole = KnownModel(name, config, sum(sizes.values()), bits, tower)
    return whole if tower else whole.text_alone


def weights_bytes(name: str) -> int:
    """What the weights take that are called `name`, a folder or random:NAME. Nothing is downloaded."""
    return sum(_sizes(name).values())


def _sizes(name: str) -> dict[str, int]:
    """Bytes of each tensor."""
    if not name.startswith(RANDOM_PREFIX):
        found = find_tensors(Path(name).expanduser())
        return {text_name(each): info.num_bytes for each, info in found.items()}
    shape = parse_shape(name.removeprefix(RANDOM_PREFIX))
    made = (tensor_shapes(shape, each, size) for each, size in parameters_of(shape)[1])
    return {each: _BYTES[dtype] * math.prod(size) for part in made for each, (dtype, size) in part.items()}


def claimed_mac(num_bytes: int) -> DeviceMemory:
    """The memory of a Mac with `num_bytes`, of which nothing is used yet.

    Metal's recommended working set is two thirds of up to 36 GB, and three quarters of more.
    """
    working_set = num_bytes * 2 // 3 if num_bytes <= 36 * GIB else num_bytes * 3 // 4
    return gpu_memory(
        {
            "memory_size": num_bytes,
            "max_recommended_working_set_size": working_set,
            "max_buffer_length": working_set * 3 // 4,
        },
        active=0,
    )


def dtype_of(model: KnownModel) -> mx.Dtype:
    """What it computes in by default."""
    return mx.float32 if model.bits == 32 else mx.bfloat16
