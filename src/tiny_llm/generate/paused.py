"""Prompts that are paused between two chunks: how long they wait, in which form, and what they may hold."""

import sys
from dataclasses import dataclass

from tiny_llm_lab.types import Arrival, Prefill

from ..cache.packed_kv import PackedKv
from .priority import MAX_WAIT_S


@dataclass
class PausedPrefill:
    """One paused prompt; `packed` are its layers in 8 bits, none where they are as they were."""

    prefill: Prefill
    arrival: Arrival
    packed: list[PackedKv]

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values that it stores, room for more not counted."""
        raise NotImplementedError("task 2.8.3")


class PausedPrefills:
    """The prompts of a run that were begun and gave way to others."""

    def __init__(
        self,
        *,
        long_tokens: int = 256,
        max_pauses: int = 8,
        max_wait_s: float = MAX_WAIT_S,
        kv_bits: int | None = None,
        limit_bytes: int = sys.maxsize,
    ) -> None:
        """Nothing is paused. Raises UserError when `kv_bits` is neither None nor 8.

        A prompt gives way while more than `long_tokens` of its tokens are left, at most `max_pauses` times,
        and not once it is overdue by `max_wait_s`. `kv_bits` 8 (from task 2.8.4 on) packs the cache of a
        paused prompt. `limit_bytes` (from task 2.8.5 on) bounds what all of them store.
        Sets num_pauses, num_evictions and peak_bytes to 0; peak_bytes is the most that was stored at a time.
        """
        raise NotImplementedError("task 2.8.3")

    def __len__(self) -> int:
        """How many prompts are paused."""
        raise NotImplementedError("task 2.8.3")

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values that all paused prompts store."""
        raise NotImplementedError("task 2.8.3")

    def gives_way(self, prefill: Prefill, arrival: Arrival, now_s: float) -> bool:
        """Whether a running prefill, which arrived as `arrival`, may be paused at `now_s`.

        It may when more than long_tokens of its tokens are left, it was paused fewer than max_pauses times,
        it has computed a chunk since it began or went on, and it is not overdue.
        """
        raise NotImplementedError("task 2.8.3")

    def add(self, prefill: Prefill, arrival: Arrival) -> None:
        """Keep a prompt between two chunks; count the pause.

        Its cache stays with it: in 8 bits where kv_bits says so, and unless `evict` drops it.
        """
        raise NotImplementedError("task 2.8.3")

    def peek(self, now_s: float) -> Arrival | None:
        """The paused prompt that is the most urgent by `urgency`; None when none is paused."""
        raise NotImplementedError("task 2.8.3")

    def resume(self, now_s: float) -> Prefill:
        """Take the most urgent prompt out, ready for a chunk at its offset. Raises IndexError without one."""
        raise NotImplementedError("task 2.8.3")

    def evict(self) -> None:
        """Drop caches until all paused prompts together store at most limit_bytes; count them.

        First goes the one that is the cheapest to compute again, with the fewest tokens computed; of equal
        ones the first arrival. A prompt that loses its cache stays paused and begins again at offset 0.
        """
        raise NotImplementedError("task 2.8.5")

    def release(self) -> None:
        """Give the memory of all paused prompts back and forget them."""
        raise NotImplementedError("task 2.8.3")
