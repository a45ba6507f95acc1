"""Measures the physical limits of this machine's CPU."""

import ctypes
import functools
import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from tiny_llm_lab.runtime.native.compiling.build import CPP, CompileError, Library, build
from tiny_llm_lab.runtime.native.compiling.isa import features
from tiny_llm_lab.types import UserError

_SOURCE: Final = CPP / "limits.cpp"
_FLAGS: Final = ("-O3",)
# Whether -march or -mcpu means the machine at hand depends on the CPU and on the compiler.
_NATIVE_FLAGS: Final = ("-march=native", "-mcpu=native", None)
_RUNS: Final = 5
_RUN_S: Final = 0.08
# Many times the largest cache, so that nothing is left in it from the last round.
_BUFFER_BYTES: Final = 1 << 29


@dataclass(frozen=True)
class Limits:
    """Medians of short runs; None for a product that the CPU has no instructions for."""

    threads: int
    read_gb_s: float
    f32_gflop_s: float
    bf16_gflop_s: float | None
    int8_gop_s: float | None


def measure(threads: int) -> Limits:
    """Measure with `threads` threads; two seconds. Raises UserError when it cannot be compiled."""
    if threads < 1:
        raise UserError(f"threads must be 1 or more, not {threads}")
    library = ctypes.CDLL(str(_compiled()))
    read = _median(library.limits_read, threads, ctypes.c_size_t(_BUFFER_BYTES))
    f32 = _median(library.limits_f32, threads)
    if read is None or f32 is None:
        raise UserError(f"measuring the bandwidth needs {_BUFFER_BYTES >> 20} MiB of memory: close programs")
    return Limits(
        threads=threads,
        read_gb_s=read,
        f32_gflop_s=f32,
        bf16_gflop_s=_median(library.limits_bf16, threads),
        int8_gop_s=_median(library.limits_int8, threads),
    )


def _median(function: Any, threads: int, *more: ctypes.c_size_t) -> float | None:
    rates = (ctypes.c_double * _RUNS)()
    failed = function(threads, _RUNS, ctypes.c_double(_RUN_S), *more, rates)
    return None if failed else median(rates)


@functools.cache
def _compiled() -> Path:
    """The library, compiled for this CPU: its features are part of the cache's key."""
    message = UserError("the C++ compiler rejects limits.cpp")
    for native in _NATIVE_FLAGS:
        flags = (*_FLAGS, *filter(None, [native]), f"-DTINY_CPU={_cpu()}")
        try:
            return build(
                Library("limits.so", ((_SOURCE, flags),), what="the measurement of this machine's limits")
            )
        except CompileError as error:
            message = error
    raise message


def _cpu() -> str:
    # Several machines may share a home folder, and code for one may be illegal on another.
    return hashlib.sha256(" ".join([platform.processor(), *sorted(features())]).encode()).hexdigest()[:12]
