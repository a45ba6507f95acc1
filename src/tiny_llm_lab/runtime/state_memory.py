"""How many states of a hybrid model an engine has room for: of running requests, and as snapshots."""

from dataclasses import dataclass
from typing import Final

import mlx.core as mx

from tiny_llm_lab.runtime.kv_memory import AUTO, block_bytes, parse_memory
from tiny_llm_lab.runtime.memory import DeviceMemory, device_memory, readable
from tiny_llm_lab.types import ModelConfig, UserError

# Blocks and snapshots are found together, and by default they weigh the same.
_AUTO_SHARE: Final = 0.5


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
