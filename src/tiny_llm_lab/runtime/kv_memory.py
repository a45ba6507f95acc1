"""How many blocks of keys and values fit into an amount of memory."""

import re
from dataclasses import dataclass
from typing import Final

import mlx.core as mx

from tiny_llm_lab.runtime.memory import DeviceMemory, device_memory, readable, require_fit
from tiny_llm_lab.types import ModelConfig, SchedulerConfig, UserError

# Blocks and snapshots are found together, and by default they weigh the same.


AUTO: Final = "auto"  # half of the free memory; at most 1 GiB on a CPU, on Metal as below
_AUTO_SHARE: Final = 0.5
_MOST_ON_CPU: Final = 2**30
# All programs share a Mac's memory, and few of its requests are long, so we take the smaller of both.
_MOST_ON_METAL: Final = 4 * 2**30
_MOST_TOKENS_ON_METAL: Final = 65_536
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


def num_blocks_for(
    config: ModelConfig, dtype: mx.Dtype, block_size: int, kv_bytes: int, kv_bits: int | None = None
) -> int:
    """How many blocks `kv_bytes` hold. Raises UserError if none does, or for a block_size below 1."""
    if block_size < 1:
        raise UserError(f"block_size must be 1 or more, not {block_size}")
    one = block_bytes(config, dtype, block_size, kv_bits)
    if kv_bytes < one:
        raise UserError(
            f"one block of {block_size} tokens takes {readable(one)} and the KV cache may use "
            f"{readable(kv_bytes)}: give it more memory, or choose smaller blocks"
        )
    return kv_bytes // one


def engine_num_blocks(
    config: ModelConfig,
    dtype: mx.Dtype,
    block_size: int,
    scheduler: SchedulerConfig,
    kv_cache_memory: str = AUTO,
    kv_bits: int | None = None,
    num_requests: int | None = None,
    memory: DeviceMemory | None = None,
    states_bytes: int = 0,
) -> int:
    """How many blocks an engine gets: those that its requests can fill, and that `kv_cache_memory` holds.

    Requests: those that run at a time, or `num_requests` when there will never be more. To be called when the
    weights are loaded; `memory` None is MLX's device's. `states_bytes` of the memory are for a hybrid's
    states. Raises UserError for a pool that cannot be allocated.
    """
    here = memory or device_memory()
    most = scheduler.max_num_seqs if num_requests is None else min(scheduler.max_num_seqs, num_requests)
    kv_bytes = parse_memory(kv_cache_memory, here) - states_bytes
    room = num_blocks_for(config, dtype, block_size, kv_bytes, kv_bits)
    count = min(room, most * -(-scheduler.max_model_len // block_size))
    one_array = array_block_bytes(config, dtype, block_size, kv_bits)
    if kv_cache_memory == AUTO and here.largest_array is not None:
        count = min(count, max(1, here.largest_array // one_array))
    if kv_cache_memory == AUTO and here.can_be_wired:
        # If you ask for longer requests than that, the pool must hold one.
        count = min(count, -(-max(_MOST_TOKENS_ON_METAL, scheduler.max_model_len) // block_size))
    require_fit(
        f"{count} blocks of {block_size} tokens",
        count * block_bytes(config, dtype, block_size, kv_bits) + states_bytes,
        count * one_array,
        "choose a smaller --kv-cache-memory, or --kv-cache-dtype int8",
        here,
    )
    return count


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

    "auto" is half of it, on a CPU 1 GiB at most, on Metal 4 GiB; `memory` as in `engine_num_blocks`. Raises
    UserError for anything else.
    """
    here = memory or device_memory()
    if text == AUTO:
        half = int(_AUTO_SHARE * here.free)
        if here.can_be_wired:
            return min(half, _MOST_ON_METAL)
        return min(half, _MOST_ON_CPU) if mx.default_device() == mx.cpu else half
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


@dataclass(frozen=True)
class StateMemory:
    """The states of an engine; all numbers are 0 for a model without states."""

    num_running: int = 0
    num_snapshots: int = 0
    state_bytes: int = 0  # of one sequence

    @property
    def has_cache(self) -> bool:
        """Whether a prefix can be found: for a model with states it needs a snapshot."""
        return self.num_snapshots > 0 or self.state_bytes == 0

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return (self.num_running + self.num_snapshots) * self.state_bytes


def state_memory(
    config: ModelConfig,
    num_requests: int,
    kv_cache_memory: str = AUTO,
    state_cache_memory: str | None = AUTO,
    *,
    has_drafts: bool = False,
    memory: DeviceMemory | None = None,
) -> StateMemory:
    """The states of `num_requests` running requests, twice with drafts, and as many snapshots as have room.

    Both are part of `kv_cache_memory`. Snapshots get `state_cache_memory` ("auto": half of what the requests
    leave; None: nothing). Raises UserError if the requests' states leave nothing for blocks, or snapshots
    would.
    """
    one, here = config.state_bytes, memory or device_memory()
    if one == 0:
        return StateMemory()
    kv_bytes, num_running = parse_memory(kv_cache_memory, here), num_requests * (2 if has_drafts else 1)
    room = kv_bytes - num_running * one
    if room <= 0:
        raise UserError(
            f"the states of {num_requests} requests take {readable(num_running * one)}, "
            f"{readable(one)} each{', twice with drafts' if has_drafts else ''}, and --kv-cache-memory is "
            f"{readable(kv_bytes)}: raise it, or choose a smaller --max-num-seqs"
        )
    if state_cache_memory is None:
        return StateMemory(num_running, 0, one)
    asked = int(_AUTO_SHARE * room)
    if state_cache_memory != AUTO:
        asked = parse_memory(state_cache_memory, here)
    if asked >= room:
        raise UserError(
            f"--state-cache-memory is {readable(asked)}, and {readable(room)} of --kv-cache-memory are left "
            "beside the states of running requests: choose a smaller one"
        )
    return StateMemory(num_running, asked // one, one)


def snapshot_interval(
    config: ModelConfig, dtype: mx.Dtype, block_size: int, asked: int | None, kv_bits: int | None = None
) -> int:
    """Tokens between two snapshots of a long prompt, a multiple of `block_size`.

    By default as many as have keys and values that weigh what a snapshot does. Raises UserError for `asked`
    that is no multiple.
    """
    if asked is None:
        return block_size * max(1, -(-config.state_bytes // block_bytes(config, dtype, block_size, kv_bits)))
    if asked < 1 or asked % block_size:
        raise UserError(f"--state-cache-interval must be a multiple of block_size {block_size}, not {asked}")
    return asked
