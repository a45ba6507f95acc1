"""Whether the machine is short of memory, according to macOS; on other systems we never know."""

import ctypes
import platform
import time
from collections.abc import Callable
from typing import Final, Literal

from tiny_llm_lab.runtime.ranks import is_rank
from tiny_llm_lab.types import Clock

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
