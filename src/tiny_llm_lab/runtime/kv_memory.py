"""What keys and values take, and amounts of memory as people write them."""

import re
from typing import Final

import mlx.core as mx

from tiny_llm_lab.runtime.memory import DeviceMemory, device_memory, require_fit
from tiny_llm_lab.types import ModelConfig, UserError

AUTO: Final = "auto"  # what a model may have of the memory that is free
_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def block_bytes(config: ModelConfig, dtype: mx.Dtype, block_size: int, kv_bits: int | None = None) -> int:
    """Bytes of one block: keys and values of `block_size` tokens, [G, block_size, D] each, in all layers.

    With kv_bits=8 a row has a byte for each number and a float32 scale.
    """
    row = config.head_dim * dtype.size if kv_bits is None else config.head_dim + 4
    return 2 * config.num_kv_layers * config.num_key_value_heads * row * block_size


def array_block_bytes(
    config: ModelConfig, dtype: mx.Dtype, block_size: int, kv_bits: int | None = None
) -> int:
    """Bytes of one block in one of the arrays that it is spread over: the keys of one layer, say."""
    number_bytes = dtype.size if kv_bits is None else 1
    return config.num_key_value_heads * config.head_dim * number_bytes * block_size


def require_dense_fit(
    config: ModelConfig, dtype: mx.Dtype, num_rows: int, num_tokens: int, cure: str
) -> None:
    """Raise UserError when `num_rows` caches of `num_tokens` tokens each cannot be allocated."""
    one = array_block_bytes(config, dtype, num_tokens)
    whole = num_rows * (block_bytes(config, dtype, num_tokens) + config.state_bytes)
    rows = "1 request" if num_rows == 1 else f"{num_rows} requests"
    require_fit(f"keys and values of {rows} of {num_tokens} tokens", whole, num_rows * one, cure)


def parse_memory(text: str, memory: DeviceMemory | None = None) -> int:
    """Bytes of "512M", "2G" or "4096" (K, M, G, T are powers of 1024); "0.5" is that share of free memory.

    "auto" is what a model may have of it. `memory` None is that of MLX's device. Raises UserError for
    anything else.
    """
    here = memory or device_memory()
    if text == AUTO:
        return int(here.free * here.share)
    number, unit = _number_and_unit(text)
    return int(number * (here.free if is_share(text) else _UNITS[unit]))


def parse_size(text: str) -> int:
    """Bytes of "512M" or "20G", as in `parse_memory`. Raises UserError for a share, and for anything else."""
    if is_share(text):
        raise UserError(f"{text!r} is not a size on a disk: write 512M or 20G")
    number, unit = _number_and_unit(text)
    return int(number * _UNITS[unit])


def is_share(text: str) -> bool:
    """Whether `text`, as in `parse_memory`, is a share of the free memory, which differs by process."""
    if text == AUTO:
        return True
    number, unit = _number_and_unit(text)
    return not unit and number < 1


def _number_and_unit(text: str) -> tuple[float, str]:
    result = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if result is None:
        raise UserError(f"{text!r} is not an amount of memory: write 512M, 2G, or 0.5 for half of it")
    return float(result[1]), result[2].upper()
