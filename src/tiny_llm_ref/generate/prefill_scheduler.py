"""The prefill policy of day 2.8 for `batch_generate`: classes, reserved rows and pauses in one object."""

import sys
import time
from functools import partial

from tiny_llm_lab.types import Arrival, Arrivals, Clock, PrefillPolicy, UserError

from .paused import PausedPrefills
from .priority import MAX_WAIT_S, PriorityScheduler, is_overdue, may_start
from .request import Request


class PrefillScheduler(PrefillPolicy):
    """A `PrefillPolicy`: paused prompts continue before others start, the most urgent first."""

    def __init__(
        self,
        *,
        max_wait_s: float = MAX_WAIT_S,
        reserved_rows: int = 0,
        long_tokens: int | None = None,
        max_pauses: int = 8,
        kv_bits: int | None = None,
        kv_limit_bytes: int | None = None,
    ) -> None:
        """Settings of `PriorityScheduler`, `may_start` and `PausedPrefills`; long_tokens None = no pauses.

        Sets paused, the `PausedPrefills` of the run. Raises UserError for a setting that is negative or NaN;
        the message names the setting.
        """
        numbers = {"max_wait_s": max_wait_s, "reserved_rows": reserved_rows, "max_pauses": max_pauses}
        most = {"long_tokens": long_tokens, "kv_limit_bytes": kv_limit_bytes}
        limits = {name: sys.maxsize if value is None else value for name, value in most.items()}
        for name, value in (numbers | limits).items():
            if not value >= 0:
                raise UserError(f"{name} must be 0 or more, not {value}")
        self.max_wait_s, self.reserved_rows, self.long_tokens = max_wait_s, reserved_rows, long_tokens
        self._new_paused = partial(
            PausedPrefills,
            long_tokens=limits["long_tokens"],
            max_pauses=max_pauses,
            max_wait_s=max_wait_s,
            kv_bits=kv_bits,
            limit_bytes=limits["kv_limit_bytes"],
        )
        self.begin(1, time.perf_counter)

    @property
    def num_waiting(self) -> int:
        """The number of prompts that have arrived but not started, plus the paused prompts."""
        return len(self._waiting) + len(self.paused)

    def begin(self, batch_size: int, clock: Clock) -> None:
        """Start a run with `batch_size` rows, and forget everything from before."""
        self._batch_size, self._clock = batch_size, clock
        self._waiting = PriorityScheduler(self.max_wait_s)
        self._begun: dict[int, Arrival] = {}
        self.paused = self._new_paused()

    def select_prefill(
        self, arrivals: Arrivals, running: Request | None, num_decoding: int
    ) -> Request | Arrival | None:
        """Returns whose chunk is next; takes prompts that have arrived from the `arrivals` queue.

        A running prefill continues, or is paused if an interactive prompt would start next and it gives way.
        If there is no running prefill, the most urgent paused prompt continues, if `may_start` allows it.
        Otherwise, and after a pause, the most urgent prompt starts, if `may_start` allows it.
        """
        now_s = self._clock()
        while (arrival := arrivals.pop()) is not None:
            self._waiting.push(arrival)
        if running:
            if not self._pauses(running, now_s):
                return running
        elif self._startable(self.paused.peek(now_s), num_decoding, now_s):
            return self.paused.resume(now_s)
        head = self._startable(self._waiting.peek(now_s), num_decoding, now_s)
        if head:
            self._waiting.pop(now_s)
            self._begun[head.prompt_idx] = head
        return head

    def release(self) -> None:
        """Free the memory of all paused prompts."""
        self.paused.release()

    def _pauses(self, running: Request, now_s: float) -> bool:
        head, arrival = self._waiting.peek(now_s), self._begun[running.prompt_idx]
        is_wanted = head and head.prompt.priority_class == "interactive"
        if not is_wanted or not self.paused.gives_way(running, arrival, now_s):
            return False
        self.paused.add(running, arrival)
        return True

    def _startable(self, arrival: Arrival | None, num_decoding: int, now_s: float) -> Arrival | None:
        may = arrival and may_start(
            arrival.prompt.priority_class,
            num_decoding,
            self._batch_size,
            reserved_rows=self.reserved_rows,
            is_overdue=is_overdue(arrival, now_s, self.max_wait_s),
        )
        return arrival if may else None
