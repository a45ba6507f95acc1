"""The checks that compute nothing: machine, versions, compiler, folders."""

import importlib.metadata
import os
import platform
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx

from tiny_llm_lab.measure.bench.host import cpu_model
from tiny_llm_lab.measure.doctor.finding import Finding, without_home
from tiny_llm_lab.runtime.cache import cache_folder
from tiny_llm_lab.runtime.memory import device_memory, readable
from tiny_llm_lab.runtime.native.compiling.build import NoCompilerError, compiler, compiler_version
from tiny_llm_lab.runtime.native.compiling.isa import available, selected_isa
from tiny_llm_lab.runtime.native.device.verdict import metal_wheel, wheel_fault

_LEAST_FREE = 2**30
_PINNED = re.compile(r"(mlx|mlx-lm)==([\w.]+)")
_LEAST_MACOS = 14
_INSTALL = "run ./pdmw install"


def system() -> Iterator[Finding]:
    """The operating system, Python and the device that MLX computes on."""
    is_mac = platform.system() == "Darwin"
    name = f"macOS {platform.mac_ver()[0]}" if is_mac else f"{platform.system()} {platform.release()}"
    fault, cure = _mac_fault(platform.machine(), platform.mac_ver()[0]) if is_mac else ("", "")
    says = f"{name}, {platform.machine()}, Python {platform.python_version()}{fault and '; '}{fault}"
    yield Finding("system", not fault, says, cure)
    if mx.default_device() == mx.cpu:
        says = f"{cpu_model()}, a CPU with {os.cpu_count()} cores"
        cure = "use a Mac with Apple silicon and macOS 14 or newer, not a virtual machine" if is_mac else ""
        yield Finding("device", not is_mac, says, cure)
    else:
        kind = "Metal" if mx.metal.is_available() else "CUDA"
        yield Finding("device", True, f"{mx.device_info().get('device_name')}, a GPU, by {kind}")


def _mac_fault(machine: str, version: str) -> tuple[str, str]:
    """Why MLX can't run on this Mac, and the cure; empty if it can."""
    if machine != "arm64":
        cure = "install a Python for Apple silicon, then delete .venv and .pdmw"
        return "a Python for Intel Macs, which MLX does not support", cure
    if int(version.partition(".")[0] or 0) < _LEAST_MACOS:
        return f"MLX needs macOS {_LEAST_MACOS} or newer", "update macOS"
    return "", ""


def memory() -> Iterator[Finding]:
    """The device's memory, and how much of it is free."""
    here = device_memory()
    says = f"{readable(here.total)}, {readable(here.free)} free"
    if here.usable < here.total:
        says += f"; a GPU may use {readable(here.usable)}"
    if here.largest_array is not None:
        says += f", {readable(here.largest_array)} of it in one array"
    yield Finding("memory", here.free >= _LEAST_FREE, says, "close other programs")


def versions() -> Iterator[Finding]:
    """MLX and mlx-lm, and whether they are the ones that this version is tested with."""
    try:
        wanted = dict(_PINNED.findall(" ".join(importlib.metadata.requires("tiny-llm") or ())))
    except importlib.metadata.PackageNotFoundError:  # run from source
        wanted = {}
    for name in ("mlx", "mlx-lm"):
        try:
            here = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, False, "is not installed", _INSTALL)
            continue
        pinned = wanted.get(name, here)
        says = here if here == pinned else f"{here}, but this version is tested with {pinned}"
        yield Finding(name, here == pinned, says, _INSTALL)
    if wheel := metal_wheel():
        fault, cure = wheel_fault(wheel, platform.mac_ver()[0])
        yield Finding("mlx-metal", not fault, f"{wheel} {fault}".strip(), cure)


def cpp_compiler() -> Iterator[Finding]:
    """The compiler; a GPU computes without one."""
    try:
        cxx = compiler()
    except NoCompilerError as error:
        is_right, cure = mx.default_device() == mx.gpu, str(error).partition(": ")[2]
        says = "missing, and a CPU and the course's C++ need one"
        # We show a cure only below a fault.
        yield Finding("compiler", is_right, f"{says}: {cure}" if is_right else says, cure)
        return
    yield Finding("compiler", True, compiler_version(cxx).strip().partition("\n")[0])


def instruction_set() -> Iterator[Finding]:
    """The instruction set of the C++ kernels."""
    names = ", ".join(isa.name for isa in available())
    yield Finding("instructions", True, f"{selected_isa().name}; this CPU runs {names}")


def caches() -> Iterator[Finding]:
    """Our cache folder, which must be writable, and the folder of downloaded models."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        cure = "set TINY_LLM_CACHE to a folder that you can write to"
        yield Finding("cache", False, f"{without_home(str(folder))}: {error.strerror}", cure)
    else:
        parts = (f"{part.name} {readable(_size(part))}" for part in sorted(folder.iterdir()) if part.is_dir())
        yield Finding("cache", True, f"{without_home(str(folder))}: {', '.join(parts) or 'empty'}")
    from huggingface_hub.constants import HF_HUB_CACHE

    hub = Path(HF_HUB_CACHE)
    yield Finding(
        "downloads", True, f"{without_home(str(hub))}: {readable(_size(hub)) if hub.is_dir() else 'nothing'}"
    )


def _size(folder: Path) -> int:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files)
