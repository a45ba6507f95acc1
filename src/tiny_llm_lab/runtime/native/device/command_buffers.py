"""Sets how much work MLX puts into one command buffer on Metal."""

import os
from dataclasses import dataclass
from typing import Final

import mlx.core as mx


@dataclass(frozen=True)
class BufferLimits:
    """MLX ends a command buffer above so many operators, or when these read more than so many Mi elements."""

    ops: int
    mi_elements: int


# With MLX's own 40 Mi elements each touch of a pool of keys ends a buffer: up to 180 a step, and MLX waits
# when 10 are in flight. Without a limit a step has fewer than 10, so the next step finds the pools in use and
# copies them. With these a step has 14 to 40 (`python -m benchmarks.measurements.command_buffers`).
LIMITS: Final = BufferLimits(ops=40, mi_elements=200)


def set_buffer_limits() -> None:
    """Give MLX our limits on Metal, unless its own variables are set.

    To be called before MLX first uses the GPU: it reads them then.
    """
    if mx.metal.is_available():
        os.environ.setdefault("MLX_MAX_OPS_PER_BUFFER", str(LIMITS.ops))
        os.environ.setdefault("MLX_MAX_MB_PER_BUFFER", str(LIMITS.mi_elements))
