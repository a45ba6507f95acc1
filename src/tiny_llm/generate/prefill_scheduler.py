"""The prefill policy of day 2.8 for `batch_generate`: classes, reserved rows and pauses in one object."""

from tiny_llm_lab.types import Arrival, Arrivals, Clock, PrefillPolicy

from .priority import MAX_WAIT_S
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
        raise NotImplementedError("task 2.8.6")

    @property
    def num_waiting(self) -> int:
        """The number of prompts that have arrived but not started, plus the paused prompts."""
        raise NotImplementedError("task 2.8.6")

    def begin(self, batch_size: int, clock: Clock) -> None:
        """Start a run with `batch_size` rows, and forget everything from before."""
        raise NotImplementedError("task 2.8.6")

    def select_prefill(
        self, arrivals: Arrivals, running: Request | None, num_decoding: int
    ) -> Request | Arrival | None:
        """Returns whose chunk is next; takes prompts that have arrived from the `arrivals` queue.

        A running prefill continues, or is paused if an interactive prompt would start next and it gives way.
        If there is no running prefill, the most urgent paused prompt continues, if `may_start` allows it.
        Otherwise, and after a pause, the most urgent prompt starts, if `may_start` allows it.
        """
        raise NotImplementedError("task 2.8.6")

    def release(self) -> None:
        """Free the memory of all paused prompts."""
        raise NotImplementedError("task 2.8.6")
