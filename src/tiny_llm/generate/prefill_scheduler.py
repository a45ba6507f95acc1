"""The prefill policy of day 2.8: classes, reserved rows and pauses in one object, for `batch_generate`."""

from tiny_llm_lab.types import Arrival, Arrivals, Clock, Prefill

from .priority import MAX_WAIT_S


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
        raise NotImplementedError("task 2.8.6")

    @property
    def num_waiting(self) -> int:
        """Prompts that have arrived and not begun, and prompts that are paused."""
        raise NotImplementedError("task 2.8.6")

    def begin(self, batch_size: int, clock: Clock) -> None:
        """A run with `batch_size` rows begins; whatever was before is forgotten."""
        raise NotImplementedError("task 2.8.6")

    def select_prefill(
        self, arrivals: Arrivals, running: Prefill | None, num_decoding: int
    ) -> Prefill | Arrival | None:
        """Whose chunk is next; `arrivals` that have come are taken from the queue.

        A running prefill goes on, or is paused if an interactive prompt would begin next and it gives way.
        Without one the most urgent paused prompt goes on, if `may_start` lets it. Otherwise, and after a
        pause, the most urgent prompt begins, if `may_start` lets it.
        """
        raise NotImplementedError("task 2.8.6")

    def release(self) -> None:
        """Give the memory of every paused prompt back."""
        raise NotImplementedError("task 2.8.6")
