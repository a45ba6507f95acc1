"""A table of weights and pools on Macs, from the code that sizes pools, for claimed devices."""

import json
import math
import tempfile
from pathlib import Path
from typing import Final

import mlx.core as mx

from tiny_llm_lab.runtime.kv_memory import block_bytes, engine_num_blocks
from tiny_llm_lab.runtime.memory import DeviceMemory, gpu_memory, readable
from tiny_llm_lab.runtime.models.config.model_config import read_config
from tiny_llm_lab.runtime.models.random.config_json import config_json
from tiny_llm_lab.runtime.models.random.random_weights import tensor_shapes
from tiny_llm_lab.runtime.models.random.shapes import parse_shape
from tiny_llm_lab.runtime.models.weights.parameters import parameter_shapes
from tiny_llm_lab.runtime.models.weights.safetensors_file import ITEM_SIZES
from tiny_llm_lab.types import ModelConfig, SchedulerConfig, UserError
from tools.book.page import markdown_table

_MACS: Final = (8, 16, 32, 64, 128)  # GB
_MODELS: Final = ("0.6b", "1.7b", "4b", "8b", "14b", "32b")
_BLOCK_SIZE: Final = 16


def macs_table() -> str:
    """A row for each model of 4 bits: its weights, and on each Mac the pool, or that it does not fit."""
    rows = []
    for name in _MODELS:
        config, weights = model_of(f"qwen3-{name},bits=4")
        pools = [pool_on(memory, config, weights) for memory in _MACS]
        rows.append([f"Qwen3-{name.upper()}", readable(weights), *pools])
    titles = ("4 bits", "weights", *(f"{memory} GB" for memory in _MACS))
    return markdown_table(titles, ["---", *["--:"] * (len(titles) - 1)], rows)


def model_of(shape_name: str) -> tuple[ModelConfig, int]:
    """The configuration of a shape, and the bytes of its weights."""
    shape = parse_shape(shape_name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config_json(shape)), encoding="utf-8")
        config, _ = read_config(path)
    tensors = [
        each for name, size in parameter_shapes(config) for each in tensor_shapes(shape, name, size).values()
    ]
    return config, sum(math.prod(size) * ITEM_SIZES[dtype] for dtype, size in tensors)


def claimed_mac(gigabytes: int, active: int) -> DeviceMemory:
    """The memory of a Mac with `active` bytes in use: a GPU has two thirds of up to 36 GB, then 3/4."""
    total = gigabytes * 2**30
    usable = total * 2 // 3 if gigabytes <= 36 else total * 3 // 4
    info = {"memory_size": total, "max_recommended_working_set_size": usable}
    return gpu_memory(info | {"max_buffer_length": usable * 3 // 4}, active)


def pool_on(gigabytes: int, config: ModelConfig, weights: int) -> str:
    """The pool of a server without flags, in MiB and tokens, or that the model does not fit."""
    here = claimed_mac(gigabytes, weights)
    try:
        count = engine_num_blocks(config, mx.bfloat16, _BLOCK_SIZE, SchedulerConfig(), memory=here)
    except UserError:
        return "does not fit"
    num_bytes = count * block_bytes(config, mx.bfloat16, _BLOCK_SIZE)
    return f"{num_bytes // 2**20:,} MiB: {count * _BLOCK_SIZE:,} tokens"
