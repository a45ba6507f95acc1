"""The prefill policy of day 2.8: classes, reserved rows and pauses in one object, for `batch_generate`."""

import time

from tiny_llm_lab.types import Arrival, Arrivals, Clock, Prefill, UserError

from .paused import PausedPrefills
from .priority import MAX_WAIT_S, PriorityScheduler, is_overdue, may_start


class PrefillScheduler:
    """A `PrefillPolicy`: paused prompts go on before others begin, the most urgent first."""

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

        Sets paused, the `PausedPrefills` of the run. Raises UserError, which names it, for a setting
        that is negative or NaN.
        """
        numbers = {"max_wait_s": max_wait_s, "reserved_rows": reserved_rows, "max_pauses": max_pauses}
        more = {"long_tokens": long_tokens, "kv_limit_bytes": kv_limit_bytes}
        for name, value in (numbers | more).items():
            if value is not None and not value >= 0:
                raise UserError(f"{name} must be 0 or more, not {value}")
        self.max_wait_s, self.reserved_rows, self.long_tokens = max_wait_s, reserved_rows, long_tokens
        self._max_pauses, self._kv_bits, self._kv_limit_bytes = max_pauses, kv_bits, kv_limit_bytes
        self.begin(Arrivals([]), 1, time.perf_counter)

    @property
    def num_waiting(self) -> int:
        """Prompts that have arrived and not begun, and prompts that are paused."""
        return len(self._waiting) + len(self.paused)

    def begin(self, arrivals: Arrivals, batch_size: int, clock: Clock) -> None:
        """A run over these prompts begins, with `batch_size` rows; whatever was before is forgotten."""
        self._arrivals, self._batch_size, self._clock = arrivals, batch_size, clock
        self._waiting = PriorityScheduler(self.max_wait_s)
        self._begun: dict[int, Arrival] = {}
        self.paused = PausedPrefills(
            long_tokens=self.long_tokens or 0,
            max_pauses=self._max_pauses,
            max_wait_s=self.max_wait_s,
            kv_bits=self._kv_bits,
            limit_bytes=self._kv_limit_bytes,
        )

    def pause(self, prefill: Prefill) -> bool:
        """Pause the running prefill if an interactive prompt would begin next and this one gives way."""
        if self.long_tokens is None:
            return False
        now_s = self._receive()
        head, arrival = self._waiting.peek(now_s), self._begun[prefill.prompt_idx]
        if head is None or head.prompt.priority_class != "interactive":
            return False
        if not self.paused.gives_way(prefill, arrival, now_s):
            return False
        self.paused.add(prefill, arrival)
        return True

    def resume(self, num_decoding: int) -> Prefill | None:
        """The most urgent paused prompt, if `may_start` lets it go on."""
        now_s = self._clock()
        arrival = self.paused.peek(now_s)
        return self.paused.resume(now_s) if self._may_start(arrival, num_decoding, now_s) else None

    def pop(self, num_decoding: int) -> Arrival | None:
        """The most urgent prompt that has arrived, if `may_start` lets it begin."""
        now_s = self._receive()
        if not self._may_start(self._waiting.peek(now_s), num_decoding, now_s):
            return None
        arrival = self._waiting.pop(now_s)
        if arrival is not None:
            self._begun[arrival.prompt_idx] = arrival
        return arrival

    def release(self) -> None:
        """Give the memory of every paused prompt back."""
        self.paused.release()

    def _receive(self) -> float:
        while (arrival := self._arrivals.pop()) is not None:
            self._waiting.push(arrival)
        return self._clock()

    def _may_start(self, arrival: Arrival | None, num_decoding: int, now_s: float) -> bool:
        return arrival is not None and may_start(
            arrival.prompt.priority_class,
            num_decoding,
            self._batch_size,
            reserved_rows=self.reserved_rows,
            is_overdue=is_overdue(arrival, now_s, self.max_wait_s),
        )
