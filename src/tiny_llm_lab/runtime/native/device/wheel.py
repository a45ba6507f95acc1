"""Which of MLX's Mac builds is installed; the one for macOS 26 has kernels for an M5's matrix units."""

import importlib.metadata
import re
from typing import Final

_BUILDS: Final = (14, 15, 26)
_REAL_LEAST: Final = (26, 2)  # for the macOS 26 build, whose name can't say it


def metal_wheel() -> str:
    """The platform of the installed mlx-metal, such as macosx_26_0_arm64; empty if it is not installed."""
    try:
        said = importlib.metadata.distribution("mlx-metal").read_text("WHEEL") or ""
    except importlib.metadata.PackageNotFoundError:
        return ""
    found = re.search(r"^Tag: .*-(\S+)$", said, re.MULTILINE)
    return found[1] if found else ""


def wheel_fault(wheel: str, macos: str) -> tuple[str, str]:
    """What is wrong with this build under this version of macOS, and the cure; empty if nothing is."""
    found = re.match(r"macosx_(\d+)_", wheel)
    here = tuple(map(int, re.findall(r"\d+", macos)[:2]))
    if found is None or not here:
        return "", ""
    built, best = int(found[1]), max((each for each in _BUILDS if each <= here[0]), default=0)
    if built == _REAL_LEAST[0] and here < _REAL_LEAST:
        return "needs macOS 26.2; on older versions its kernels can fail on an M5 (mlx #4525)", "update macOS"
    if built < best:
        only = "only the build for macOS 26 uses an M5's matrix units"
        return f"is not the build for macOS {best}; {only}", "delete .venv, then run ./pdmw install"
    return "", ""
