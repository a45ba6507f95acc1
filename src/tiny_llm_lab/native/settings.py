"""The environment variables that steer the kernels, read and checked."""

import os
from typing import Final, Literal

from tiny_llm_lab.types import UserError

VARIABLE: Final = "TINY_LLM_KERNELS"
THREADS_VARIABLE: Final = "TINY_LLM_THREADS"
# Many more threads than cores only wait for each other.
MAX_THREADS: Final = max(256, 4 * (os.cpu_count() or 1))

Mode = Literal["auto", "cpp", "off"]
_MODES: Final[dict[str, Mode]] = {"": "auto", "auto": "auto", "cpp": "cpp", "on": "cpp", "off": "off"}


def kernels_mode() -> Mode:
    """TINY_LLM_KERNELS; unset means auto, and "on" is another name of "cpp". Raises UserError."""
    said = os.environ.get(VARIABLE, "")
    if said not in _MODES:
        raise UserError(f"{VARIABLE}={said}: choose auto, cpp or off")
    return _MODES[said]


def num_threads_wanted() -> int | None:
    """TINY_LLM_THREADS, or None if it is unset. Raises UserError."""
    said = os.environ.get(THREADS_VARIABLE, "")
    if not said:
        return None
    if not said.isascii() or not said.isdigit() or not 1 <= int(said) <= MAX_THREADS:
        raise UserError(f"{THREADS_VARIABLE}={said}: give a whole number from 1 to {MAX_THREADS}")
    return int(said)
