"""Facts about the machine that a measured time needs; no paths and no names of people."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from tiny_llm_lab.runtime.models.loading import set_buffer_limits
from tiny_llm_lab.runtime.native.device.verdict import macos_version, metal_wheel


def host_facts() -> dict[str, Any]:
    """System, CPU, GPU, memory, load, versions and the commit that is measured; bytes where it says so."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "system_version": macos_version() or platform.release(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "gpu": _gpu(),
        "load_1min_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "mlx": importlib.metadata.version("mlx"),
        "mlx_metal_wheel": metal_wheel() or None,
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no")),
    }


def busy_note(facts: Mapping[str, Any]) -> str:
    """What to say of a machine that had work for half of its cores before we measured; "" if it was quiet."""
    load, cores = facts.get("load_1min_before", 0.0), facts.get("cores") or 1
    if load <= cores / 2:
        return ""
    return f"This machine was busy before we began (load {load:g}, {cores} cores): trust ratios, not times."


def _gpu() -> dict[str, Any] | None:
    """MLX's default GPU; None when a CPU is the default device."""
    if mx.default_device() != mx.gpu:
        return None
    set_buffer_limits()
    info = mx.device_info()
    return {
        "name": info.get("device_name"),
        "memory_bytes": info.get("memory_size"),
        "recommended_working_set_bytes": info.get("max_recommended_working_set_size"),
    }


def cpu_model() -> str:
    """The CPU by name, or at least its kind."""
    if platform.system() == "Darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor()
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    return _output("git", "-C", str(Path(__file__).parent), *arguments)


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
