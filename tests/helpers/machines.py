"""What `mx.device_info()` says on machines that are not here; rounded numbers from reports."""

from typing import Final

import mlx.core as mx
import pytest

_GIB: Final = 2**30


def _mac(name: str, memory: int, working_set: float, largest_buffer: float) -> dict[str, str | int]:
    return {
        "device_name": name,
        "memory_size": memory * _GIB,
        "max_recommended_working_set_size": int(working_set * _GIB),
        "max_buffer_length": int(largest_buffer * _GIB),
    }


MAC_8: Final = _mac("Apple M1", 8, 5.3, 4)
MAC_16: Final = _mac("Apple M2", 16, 10.6, 8)
MAC_64: Final = _mac("Apple M4 Max", 64, 48, 36)
CUDA_80: Final[dict[str, str | int]] = {
    "device_name": "NVIDIA H100 80GB HBM3",
    "total_memory": 80 * _GIB,
    "free_memory": 70 * _GIB,
}


def pretend(
    monkeypatch: pytest.MonkeyPatch, machine: dict[str, str | int], active: int = 0, cached: int = 0
) -> None:
    """MLX says that its default device is this GPU, with so many bytes in use and in its cache."""
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    monkeypatch.setattr(mx, "device_info", lambda: machine)
    monkeypatch.setattr(mx, "get_active_memory", lambda: active)
    monkeypatch.setattr(mx, "get_cache_memory", lambda: cached)
