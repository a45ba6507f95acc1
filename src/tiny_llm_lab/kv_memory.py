"""How many blocks of keys and values fit into how much memory."""

import os
import re
from pathlib import Path
from typing import Final

import mlx.core as mx

from tiny_llm_lab.types import ModelConfig, SchedulerConfig, UserError

_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def block_bytes(config: ModelConfig, dtype: mx.Dtype, block_size: int, kv_bits: int | None = None) -> int:
    """Bytes of one block: keys and values of `block_size` tokens, [G, block_size, D] each, in every layer.

    With kv_bits=8 a row has a byte for each number and a float32 scale.
    """
    row = config.head_dim * dtype.size if kv_bits is None else config.head_dim + 4
    return 2 * config.num_hidden_layers * config.num_key_value_heads * row * block_size


def num_blocks_for(
    config: ModelConfig, dtype: mx.Dtype, block_size: int, kv_bytes: int, kv_bits: int | None = None
) -> int:
    """How many blocks `kv_bytes` hold. Raises UserError when that is none, or for a block_size below 1."""
    if block_size < 1:
        raise UserError(f"block_size must be 1 or more, not {block_size}")
    one = block_bytes(config, dtype, block_size, kv_bits)
    if kv_bytes < one:
        raise UserError(
            f"one block of {block_size} tokens takes {readable(one)} and the KV cache has "
            f"{readable(kv_bytes)}: give it more memory, or choose smaller blocks"
        )
    return kv_bytes // one


def num_engine_blocks(
    room: int, block_size: int, scheduler: SchedulerConfig, num_requests: int | None = None
) -> int:
    """Of `room` blocks those that an engine can fill: the requests that run at a time, or `num_requests`."""
    most = scheduler.max_num_seqs if num_requests is None else min(scheduler.max_num_seqs, num_requests)
    return min(room, most * -(-scheduler.max_model_len // block_size))


def parse_memory(text: str) -> int:
    """Bytes of "512M", "2G" or "4096" (K, M, G, T are powers of 1024); "0.5" is that share of free memory.

    Raises UserError for anything else.
    """
    number, unit = _number_and_unit(text)
    return int(number * (free_memory() if is_share(text) else _UNITS[unit]))


def is_share(text: str) -> bool:
    """Whether `text`, as in `parse_memory`, is a share of what is free, which is another amount elsewhere."""
    number, unit = _number_and_unit(text)
    return not unit and number < 1


def free_memory() -> int:
    """Bytes that a new cache could take on MLX's default device, roughly."""
    info = mx.device_info() if mx.default_device() == mx.gpu else {}
    # A GPU slows down beyond its recommended working set, which is less than the memory.
    size = info.get("max_recommended_working_set_size") or info.get("memory_size")
    if size:
        return max(0, int(size) - mx.get_active_memory())
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        [available] = [line for line in lines if line.startswith("MemAvailable:")]
        return int(available.split()[1]) * 1024
    except (OSError, ValueError):
        # No Linux: the whole memory, less what MLX has.
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        return max(0, pages * size - mx.get_active_memory())


def _number_and_unit(text: str) -> tuple[float, str]:
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise UserError(f"{text!r} is no amount of memory: write 512M, 2G, or 0.5 for half of what is free")
    return float(found[1]), found[2].upper()


def readable(num_bytes: float) -> str:
    """512 B, 1.5 MiB and the like."""
    units = ["B", "KiB", "MiB", "GiB"]
    while num_bytes >= 1024 and len(units) > 1:
        num_bytes /= 1024
        del units[0]
    return f"{num_bytes:.0f} B" if units[0] == "B" else f"{num_bytes:.1f} {units[0]}"
