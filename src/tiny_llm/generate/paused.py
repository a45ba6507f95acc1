"""Prompts paused between two chunks: how long they wait, in which form, and how much they may store."""

import sys
from dataclasses import dataclass

from tiny_llm_lab.types import Arrival

from ..cache.packed_kv import PackedKv
from .priority import MAX_WAIT_S
from .request import Request


@dataclass
class PausedPrefill:
    """One paused prompt. `packed` has its layers in 8 bits, or is empty if they are not packed."""

    prefill: Request
    arrival: Arrival
    packed: list[PackedKv]

    @property
    def nbytes(self) -> int:
        """The bytes of the keys and values that it stores, without spare room."""
        raise NotImplementedError("task 2.8.3")


class PausedPrefills:
    """The prompts of a run that were started and then paused for others."""

    def __init__(
        self,
        *,
        long_tokens: int = 256,
        max_pauses: int = 8,
        max_wait_s: float = MAX_WAIT_S,
        kv_bits: int | None = None,
        limit_bytes: int = sys.maxsize,
    ) -> None:
        """Nothing is paused. Raises UserError if `kv_bits` is neither None nor 8.

        A prompt gives way while more than `long_tokens` of its tokens are left, at most `max_pauses` times,
        and not once it is overdue by `max_wait_s`. `kv_bits` 8 (from task 2.8.4 on) packs the cache of a
        paused prompt. `limit_bytes` (from task 2.8.5 on) limits how much all of them store.
        Sets num_pauses, num_evictions and peak_bytes to 0; peak_bytes is the most bytes stored after an add.
        """
        raise NotImplementedError("task 2.8.3")

    def __len__(self) -> int:
        """The number of paused prompts."""
        raise NotImplementedError("task 2.8.3")

    @property
    def nbytes(self) -> int:
        """The bytes of the keys and values that all paused prompts store."""
        raise NotImplementedError("task 2.8.3")

    def gives_way(self, prefill: Request, arrival: Arrival, now_s: float) -> bool:
        """Whether a running prefill, which arrived as `arrival`, may be paused at `now_s`.

        It may if more than long_tokens of its tokens are left, it was paused fewer than max_pauses times, it
        has computed a chunk since it started or resumed, and it is not overdue.
        """
        raise NotImplementedError("task 2.8.3")

    def add(self, prefill: Request, arrival: Arrival) -> None:
        """Keep a prompt between two chunks, and count the pause.

        It keeps its cache, in 8 bits if kv_bits is 8, unless `evict` drops it.
        """
        raise NotImplementedError("task 2.8.3")

    def peek(self, now_s: float) -> Arrival | None:
        """Returns the most urgent paused prompt by `urgency`, or None if none is paused."""
        raise NotImplementedError("task 2.8.3")

    def resume(self, now_s: float) -> Request:
        """Remove the most urgent prompt and return it, ready for a chunk at its offset. Raises IndexError if
        none is paused.
        """
        raise NotImplementedError("task 2.8.3")

    def evict(self) -> None:
        """Drop caches until all paused prompts together store at most limit_bytes; count dropped caches.

        The cache that is cheapest to compute again, with the fewest computed tokens, is dropped first; if
        several have equally few, the earliest arrival. A prompt that loses its cache stays paused and starts
        again at offset 0.
        """
        raise NotImplementedError("task 2.8.5")

    def release(self) -> None:
        """Free the memory of all paused prompts and forget them."""
        raise NotImplementedError("task 2.8.3")
