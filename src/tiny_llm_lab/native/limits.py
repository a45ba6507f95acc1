"""The physical limits of this machine's CPU, measured: what no program on it can pass."""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from tiny_llm_lab.cache import cache_folder
from tiny_llm_lab.types import UserError

_SOURCE: Final = Path(__file__).with_name("limits.cpp")
_FLAGS: Final = ("-O3", "-std=c++17", "-shared", "-fPIC", "-pthread")
# Whether -march or -mcpu means the machine at hand depends on the CPU and on the compiler.
_NATIVE_FLAGS: Final = ("-march=native", "-mcpu=native", None)
_RUNS: Final = 5
_RUN_S: Final = 0.08
# Many times the largest cache, so that nothing read is still there from the round before.
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
        raise UserError(f"no {_BUFFER_BYTES >> 20} MiB of memory to measure its bandwidth: close something")
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
    """The library, compiled unless the cache folder has it for this very source, compiler and CPU."""
    compiler = _compiler()
    identity = [_SOURCE.read_bytes(), compiler.encode(), platform.platform().encode(), _cpu_features()]
    key = hashlib.sha256(b"\0".join(identity)).hexdigest()[:16]
    library = cache_folder() / "native" / f"limits-{key}.so"
    if library.exists():
        return library
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            _compile(compiler, Path(folder) / library.name).rename(library)
    except OSError as error:
        raise UserError(
            f"{library.parent}: cannot be written ({error.strerror}): set TINY_LLM_CACHE"
        ) from None
    return library


def _compile(compiler: str, library: Path) -> Path:
    said = ""
    for native in _NATIVE_FLAGS:
        command = [compiler, *_FLAGS, *filter(None, [native]), str(_SOURCE), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return library
        said = next((line for line in done.stderr.splitlines() if "error" in line), "it gave no reason")
    raise UserError(f"{compiler} cannot compile {_SOURCE.name} ({said.strip()[:160]}): set CXX to another")


def _compiler() -> str:
    wanted = [own] if (own := os.environ.get("CXX")) else ["c++", "g++", "clang++"]
    found = next(filter(None, map(shutil.which, wanted)), None)
    if found is None:
        raise UserError(f"no C++ compiler ({', '.join(wanted)}): install one, or set CXX to it")
    return found


def _cpu_features() -> bytes:
    # A home folder may serve several machines, and code for one of them may be illegal on the next.
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return platform.processor().encode()
    return b"\n".join(
        sorted({line for line in lines if line.startswith((b"flags", b"Features", b"model name"))})
    )
