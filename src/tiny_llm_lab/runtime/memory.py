"""The memory of MLX's default device: how much there is, how much is free, and MLX's own limits in it."""

import ctypes
import gc
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import mlx.core as mx

from tiny_llm_lab.runtime.ranks import is_rank
from tiny_llm_lab.types import Clock, UserError

# "low" at the first reading below _LOW, "lasting" at the next ones, until one reaches _ENOUGH. A Mac with
# nothing to do reports 40 to 90; with less than 15 it compresses and swaps.
Stage = Literal["none", "low", "lasting"]
_LOW: Final = 15
_ENOUGH: Final = 25
_INTERVAL_S: Final = 2.0


class MemoryPressure:
    """Reads how much memory is available, at most once in two seconds."""

    def __init__(self, level: Callable[[], int], clock: Clock = time.monotonic) -> None:
        """`level`: percent of the machine's memory. Sets percent, the last reading, stage, and interval_s."""
        self.percent, self.interval_s = 100, _INTERVAL_S
        self.stage: Stage = "none"
        self._level, self._clock = level, clock
        self._next_s = -1.0

    def read(self) -> Stage:
        """The current stage."""
        if (now_s := self._clock()) >= self._next_s:
            self._next_s = now_s + self.interval_s
            self.percent = self._level()
            if self.percent >= (_LOW if self.stage == "none" else _ENOUGH):
                self.stage = "none"
            else:
                self.stage = "low" if self.stage == "none" else "lasting"
        return self.stage


class NoPressure:
    """For a system that does not say."""

    percent = 100
    stage: Stage = "none"
    interval_s: None = None

    def read(self) -> Stage:
        return self.stage


def memory_pressure() -> MemoryPressure | NoPressure:
    """This machine's; none for one of several ranks, because they must decide alike."""
    is_told = platform.system() == "Darwin" and not is_rank()
    return MemoryPressure(_darwin_level) if is_told else NoPressure()


def _darwin_level() -> int:
    """`sysctl -n kern.memorystatus_level`; 100 if the kernel does not say."""
    level, size = ctypes.c_int(100), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    name = b"kern.memorystatus_level"
    failed = ctypes.CDLL(None).sysctlbyname(name, ctypes.byref(level), ctypes.byref(size), None, 0)
    return 100 if failed else level.value


# MLX returns freed buffers above this part of a GPU's memory to the system. Its own limit is all of it.
_CACHE_SHARE: Final = 8
# On a CPU an array of so many bytes gets pages of its own, which go back when it is freed. Else glibc raises
# this to 32 MiB, and freed arrays stay in a heap that only grows: 70 to 160 MiB beyond what is planned.
_OWN_PAGES: Final = 2**20
_M_MMAP_THRESHOLD: Final = -3  # of mallopt
# On a Mac: macOS itself takes about 4 GiB when nothing runs (github.com/jundot/omlx/issues/1533), an editor
# one more. Of 24 GB and more Metal's working set leaves more than that.
_OTHERS_ON_MAC: Final = 5 * 2**30
# What is wired can't be compressed, and Macs of 16 GB froze when two thirds of their memory were
# (github.com/osaurus-ai/vmlx-swift/pull/421). So this part stays free to be.
_UNWIRED_SHARE: Final = 0.35


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes. A device can use `usable` without slowing down, and `free` of it now.

    `largest_array` is the limit of one array, None without one; `can_be_wired` is true on Metal.
    """

    total: int
    usable: int
    free: int
    largest_array: int | None = None
    can_be_wired: bool = False
    is_gpu: bool = False

    @property
    def share(self) -> float:
        """The part of `free` that a model may have: on a Mac what others need is out of it already."""
        return 1.0 if self.can_be_wired else 0.9 if self.is_gpu else 0.5


def device_memory() -> DeviceMemory:
    """The memory of MLX's default device."""
    if mx.default_device() == mx.cpu:
        return _cpu_memory()
    return gpu_memory(mx.device_info(), mx.get_active_memory(), mx.get_cache_memory())


def set_limits(freed: int | None = None) -> None:
    """On a GPU bound MLX's cache of freed buffers, on Metal also keep what is used resident.

    Both limits follow the device's memory. At most `freed` bytes of freed buffers are kept, if it is given.
    On a CPU with glibc large arrays that are freed leave the process. Setting limits twice does no harm.
    """
    if mx.default_device() == mx.cpu:
        if _has_glibc():
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _OWN_PAGES)
        return
    memory = device_memory()
    most = memory.usable // _CACHE_SHARE
    mx.set_cache_limit(most if freed is None else min(freed, most))
    if memory.can_be_wired:
        mx.set_wired_limit(min(memory.usable, int(memory.total * (1 - _UNWIRED_SHARE))))


def _has_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"


def give_back() -> None:
    """Return to the system what this process has freed. glibc keeps it: 7 MiB more for each tokenizer."""
    gc.collect()
    if _has_glibc():
        ctypes.CDLL(None).malloc_trim(0)


class NotEnoughMemoryError(UserError):
    """Something is larger than the memory that is free now."""


def require_fit(
    what: str, num_bytes: int, largest_array: int, cure: str, memory: DeviceMemory | None = None
) -> None:
    """Raise UserError unless `num_bytes` are free and one array may have `largest_array` bytes.

    To be called before anything is allocated: on Metal the process ends when memory runs out. `memory` None
    is that of MLX's device.
    """
    here = memory or device_memory()
    if num_bytes > here.free:
        raise NotEnoughMemoryError(
            f"{what} need {readable(num_bytes)} and {readable(here.free)} are free: {cure}"
        )
    if here.largest_array is not None and largest_array > here.largest_array:
        raise UserError(
            f"{what} need an array of {readable(largest_array)} and this GPU takes "
            f"at most {readable(here.largest_array)}: {cure}"
        )


def readable(num_bytes: float) -> str:
    """512 B, 1.5 MiB and the like."""
    units = ["B", "KiB", "MiB", "GiB"]
    while num_bytes >= 1024 and len(units) > 1:
        num_bytes /= 1024
        del units[0]
    return f"{num_bytes:.0f} B" if units[0] == "B" else f"{num_bytes:.1f} {units[0]}"


def gpu_memory(info: Mapping[str, str | int], active: int, cached: int = 0) -> DeviceMemory:
    """The memory of a GPU with this `mx.device_info()`, of which MLX uses `active` bytes and caches some."""
    told = {key: value for key, value in info.items() if isinstance(value, int)}
    # Metal says memory_size, CUDA total_memory. A GPU that says neither shares the CPU's memory.
    total = told.get("memory_size") or told.get("total_memory") or _physical_bytes()
    working_set = told.get("max_recommended_working_set_size")  # of Metal
    usable = min(working_set, max(working_set // 2, total - _OTHERS_ON_MAC)) if working_set else total
    free = usable - active
    if "free_memory" in told:  # of CUDA: other programs may use the same GPU, and MLX can empty its cache
        free = min(free, told["free_memory"] + cached)
    return DeviceMemory(
        total, usable, max(0, free), told.get("max_buffer_length"), working_set is not None, is_gpu=True
    )


def _cpu_memory() -> DeviceMemory:
    total = _physical_bytes()
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        [available] = [line for line in lines if line.startswith("MemAvailable:")]
        return DeviceMemory(total, total, int(available.split()[1]) * 1024)
    except (OSError, ValueError):  # not Linux, so we can't see what other programs use
        return DeviceMemory(total, total, max(0, total - mx.get_active_memory()))


def _physical_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
