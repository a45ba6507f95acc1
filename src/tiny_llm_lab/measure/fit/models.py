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
from tiny_llm_lab.runtime.models.random.random_checkpoint import tensor_shapes
from tiny_llm_lab.runtime.models.random.shapes import parse_shape
from tiny_llm_lab.runtime.models.registry import HUB_IDS, RANDOM_PREFIX, SHIPPED
from tiny_llm_lab.runtime.models.weights.layout import draft_shapes, parameter_shapes
from tiny_llm_lab.runtime.models.weights.safetensors_file import weight_files
from tiny_llm_lab.types import ModelConfig, UserError

# Names whose architecture has the shape of another one.
_ALIKE: Final = {
    "qwen3-coder-30b-a3b": "qwen3-30b-a3b,positions=262144",
    "qwen3-coder-next": "qwen3-next-80b-a3b",
    "qwen3.6-27b": "qwen3.5-27b",
    "qwen3.6-35b-a3b": "qwen3.5-35b-a3b",
    "qwen3.8-27b": "qwen3.5-27b",
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
    bits = getattr(quantization and quantization.default, "bits", 16)
    return KnownModel(name, config, sum(file.stat().st_size for file in weight_files(folder)), bits)


def _random(text: str) -> KnownModel:
    shape = parse_shape(text)
    config, _ = read_config(Path(f"{RANDOM_PREFIX}{text}"), config_json(shape))
    shapes = [*parameter_shapes(config), *(draft_shapes(config) if shape.mtp else ())]
    tensors = (tensor for name, size in shapes for tensor in tensor_shapes(shape, name, size).values())
    weights = sum(_BYTES[dtype] * math.prod(size) for dtype, size in tensors)
    return KnownModel(text, config, weights, shape.bits)


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
