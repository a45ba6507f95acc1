"""What week 2's loop asks of a prefill policy: whose prompt is computed next."""

from collections.abc import Sequence
from typing import Protocol

from tiny_llm_lab.types.computing.model import RequestKvCache
from tiny_llm_lab.types.request import Clock
from tiny_llm_lab.types.scheduling.arrivals import Arrival, Arrivals


class Prefill(Protocol):
    """A prompt that is being computed: the first `offset` of its tokens are in its cache."""

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
        """Prompts that the policy has taken from the queue and that are not being computed."""
        ...

    def begin(self, batch_size: int, clock: Clock) -> None:
        """A run with `batch_size` rows begins; whatever was before is forgotten."""
        ...

    def select_prefill(
        self, arrivals: Arrivals, running: Prefill | None, num_decoding: int
    ) -> Prefill | Arrival | None:
        """Whose chunk is next, while `num_decoding` rows are taken.

        `running`, another prefill that goes on, or a prompt that begins; None when no prompt may begin.
        """
        ...

    def release(self) -> None:
        """Give back the memory of every prefill that the policy keeps."""
        ...


class FirstComeFirstServed:
    """The `PrefillPolicy` of a loop that is given none: one prompt after the other, in order of arrival."""

    num_waiting = 0

    def begin(self, batch_size: int, clock: Clock) -> None:
        pass

    def select_prefill(
        self, arrivals: Arrivals, running: Prefill | None, num_decoding: int
    ) -> Prefill | Arrival | None:
        return running or arrivals.pop()

    def release(self) -> None:
        pass


class PausedCounts(Protocol):
    """How often prompts of a run were paused, and what their caches held."""

    num_pauses: int
    num_evictions: int
    peak_bytes: int


class PausingPolicy(PrefillPolicy, Protocol):
    """A policy that pauses prefills (day 2.8), with what it has counted."""

    @property
    def paused(self) -> PausedCounts: ...
