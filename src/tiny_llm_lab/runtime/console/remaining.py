"""How far a long command is, and how long the rest will take."""

import time
from collections.abc import Callable
from typing import Final

from tiny_llm_lab.runtime.console.talk import plural

_MINUTE_S: Final = 60.0


class Remaining:
    """Counts pieces of work of about the same size; `clock` is in seconds."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._clock = total, clock
        self._done, self._start_s = 0, clock()

    def done(self) -> str:
        """Another piece is done: "3 of 11, about 8 minutes left"; for the last one "11 of 11"."""
        self._done += 1
        return self.now()

    def leave_out(self, count: int) -> None:
        """So many pieces will not be done."""
        self._total -= count

    def now(self) -> str:
        """The same with no further piece done: nothing is known of the time before the first."""
        place, left = f"{self._done} of {self._total}", self._total - self._done
        if not self._done or not left:
            return place
        left_s = (self._clock() - self._start_s) / self._done * left
        if left_s < _MINUTE_S:
            return f"{place}, less than a minute left"
        return f"{place}, about {plural(round(left_s / _MINUTE_S), 'minute')} left"
