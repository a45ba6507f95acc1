"""The facts about a machine without which a measured time means nothing; no paths, no names of people."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any


def host_facts() -> dict[str, Any]:
    """CPU, cores, load, versions and the commit that was measured."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load_1min_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "mlx": importlib.metadata.version("mlx"),
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no")),
    }


def _cpu_model() -> str:
    if platform.system() == "Darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
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
