"""Whether a loop launches its next step before it reads the current step."""

import mlx.core as mx


def is_async_scheduling(chosen: bool | None) -> bool:
    """Returns `chosen`; for None, whether MLX uses a GPU, which would idle while Python reads tokens."""
    return mx.default_device() == mx.gpu if chosen is None else chosen
