"""What `batch_generate` asks of a prefill policy: which prompt is computed next, and which one gives way."""

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


class PausedCounts(Protocol):
    """How often prompts of a run were paused, and what their caches held."""

    num_pauses: int
    num_evictions: int
    peak_bytes: int


class PrefillPolicy(Protocol):
    """Orders the prompts of one run, and keeps those that are paused between two of their chunks."""

    @property
    def paused(self) -> PausedCounts: ...

    @property
    def num_waiting(self) -> int:
        """Prompts that have arrived and not begun, and prompts that are paused."""
        ...

    def begin(self, arrivals: Arrivals, batch_size: int, clock: Clock) -> None:
        """A run over these prompts begins, with `batch_size` rows; whatever was before is forgotten."""
        ...

    def pause(self, prefill: Prefill) -> bool:
        """Whether the running prefill gives way now; if so, it is kept until `resume` returns it."""
        ...

    def resume(self, num_decoding: int) -> Prefill | None:
        """A paused prompt that goes on now, ready for its next chunk; None when none does."""
        ...

    def pop(self, num_decoding: int) -> Arrival | None:
        """A prompt that begins now; None when none may. `num_decoding` rows are taken."""
        ...

    def release(self) -> None:
        """Give the memory of every paused prompt back."""
        ...
