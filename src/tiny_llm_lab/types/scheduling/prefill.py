"""What week 2's loop calls on a prefill policy, which chooses whose prompt is computed next."""

from collections.abc import Sequence
from typing import Protocol

from tiny_llm_lab.types.computing.memory import RequestKvCache
from tiny_llm_lab.types.request import Clock
from tiny_llm_lab.types.scheduling.arrivals import Arrival, Arrivals


class Prefill(Protocol):
    """A prompt that is being computed. The first `offset` of its tokens are in its cache."""

    offset: int

    @property
    def prompt_idx(self) -> int: ...
    @property
    def prefill_tokens(self) -> Sequence[int]: ...
    @property
    def kv_cache(self) -> Sequence[RequestKvCache]: ...
    def release(self) -> None: ...


class PrefillPolicy(Protocol):
    """Chooses whose prompt is computed next."""

    @property
    def num_waiting(self) -> int:
        """How many prompts the policy has taken from the queue that are not being computed."""

    def begin(self, batch_size: int, clock: Clock) -> None:
        """Start a run with `batch_size` rows, and forget everything from before."""

    def select_prefill(
        self, arrivals: Arrivals, running: Prefill | None, num_decoding: int
    ) -> Prefill | Arrival | None:
        """Returns whose chunk is next while `num_decoding` rows are taken.

        Returns `running`, another prefill that continues, or a prompt that starts; None if no prompt may
        start.
        """

    def release(self) -> None:
        """Free the memory of every prefill that the policy keeps."""


class FirstComeFirstServed:
    """The default `PrefillPolicy` of a loop: one prompt after another, in order of arrival."""

    num_waiting = 0

    def begin(self, batch_size: int, clock: Clock) -> None:
        """The order of arrival needs neither."""

    def select_prefill(
        self, arrivals: Arrivals, running: Prefill | None, num_decoding: int
    ) -> Prefill | Arrival | None:
        return running or arrivals.pop()

    def release(self) -> None:
        """Nothing is held back."""


class PausedCounts(Protocol):
    """How often prompts of a run were paused, and how much their caches stored."""

    num_pauses: int
    num_evictions: int
    peak_bytes: int


class PausingPolicy(PrefillPolicy, Protocol):
    """A policy that pauses prefills (day 2.8), with its counts."""

    @property
    def paused(self) -> PausedCounts: ...
