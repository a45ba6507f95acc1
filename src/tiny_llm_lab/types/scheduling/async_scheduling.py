"""Whether a loop launches its next step before it reads the one in front."""

import mlx.core as mx


def is_async_scheduling(chosen: bool | None) -> bool:
    """`chosen`, or for None whether MLX runs on a GPU, which would be idle while Python reads tokens."""
    return mx.default_device() == mx.gpu if chosen is None else chosen
