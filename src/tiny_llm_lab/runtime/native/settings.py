"""Reads and checks the environment variables of the kernels."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from tiny_llm_lab.types import UserError

_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN_CGROUPS: Final = Path("/proc/self/cgroup")
_CPUS: Final = Path("/sys/devices/system/cpu")


def usable_cores(own_cgroups: Path = _OWN_CGROUPS, cgroups: Path = _CGROUPS, cpus: Path = _CPUS) -> int:
    """Cores that this process may use: hyper-threads of a core count once, and quotas of cgroups bound them.

    A quota of 2.5 cores is 2: with a third thread all of them would be stopped for a part of each period.
    """
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = len({_text(cpus / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in usable})
    quotas = _quotas(own_cgroups, cgroups)
    return max(1, min([cores, *(int(quota) for quota in quotas)]))


def _quotas(own_cgroups: Path, cgroups: Path) -> Iterator[float]:
    """Cores that this process's cgroups allow, and the cgroups around them: each of them bounds."""
    for line in (_text(own_cgroups) or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            root, files = cgroups, ["cpu.max"]
        elif "cpu" in controllers.split(","):
            root, files = cgroups / "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        for place in (inside, *inside.parents):
            quota, _, period = " ".join(_text(root / place / name) or "" for name in files).partition(" ")
            if quota.isdigit() and period.isdigit():  # "max" and -1 mean no limit
                yield int(quota) / int(period)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None


VARIABLE: Final = "TINY_LLM_KERNELS"
THREADS_VARIABLE: Final = "TINY_LLM_THREADS"
# "cpu": MLX's default device in every process; --device still chooses for one command.
DEVICE_VARIABLE: Final = "TINY_LLM_DEVICE"
# With many more threads than cores, they only wait for each other.
MAX_THREADS: Final = max(256, 4 * (os.cpu_count() or 1))

Mode = Literal["auto", "cpp", "mlx", "off"]
_MODES: Final[dict[str, Mode]] = {mode: mode for mode in ("auto", "cpp", "mlx", "off")}


def kernels_mode() -> Mode:
    """TINY_LLM_KERNELS; unset or empty means auto. Raises UserError."""
    mode = os.environ.get(VARIABLE) or "auto"
    if mode not in _MODES:
        raise UserError(f"{VARIABLE}={mode} is not a mode: choose auto, cpp, mlx or off")
    return _MODES[mode]


def num_threads_wanted() -> int | None:
    """TINY_LLM_THREADS, or None if it is unset. Raises UserError."""
    value = os.environ.get(THREADS_VARIABLE, "")
    if not value:
        return None
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= MAX_THREADS:
        raise UserError(f"{THREADS_VARIABLE}={value} is not a count: write 1 to {MAX_THREADS}")
    return int(value)
