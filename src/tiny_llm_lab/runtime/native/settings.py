"""Reads and checks the environment variables of the kernels."""

import os
from typing import Final, Literal

from tiny_llm_lab.types import UserError

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
    said = os.environ.get(VARIABLE) or "auto"
    if said not in _MODES:
        raise UserError(f"{VARIABLE}={said} is not a mode: choose auto, cpp, mlx or off")
    return _MODES[said]


def num_threads_wanted() -> int | None:
    """TINY_LLM_THREADS, or None if it is unset. Raises UserError."""
    said = os.environ.get(THREADS_VARIABLE, "")
    if not said:
        return None
    if not said.isascii() or not said.isdigit() or not 1 <= int(said) <= MAX_THREADS:
        raise UserError(f"{THREADS_VARIABLE}={said} is not a count: write 1 to {MAX_THREADS}")
    return int(said)
