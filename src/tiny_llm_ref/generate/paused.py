"""Prompts paused between two chunks: how long they wait, in which form, and how much they may store."""

import sys
from collections import Counter
from dataclasses import dataclass

from tiny_llm_lab.types import Arrival, UserError

from ..cache.packed_kv import PackedKv
from .priority import MAX_WAIT_S, is_overdue, urgency
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
        if self.packed or self.prefill.offset == 0:
            return sum(layer.nbytes for layer in self.packed)
        return sum(part.nbytes for layer in self.prefill.kv_cache for part in layer.fetch())


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
        if kv_bits not in (None, 8):
            raise UserError(f"kv_bits must be 8, or None for the model's own dtype, not {kv_bits}")
        self.long_tokens, self.max_pauses, self.max_wait_s = long_tokens, max_pauses, max_wait_s
        self.kv_bits, self.limit_bytes = kv_bits, limit_bytes
        self.num_pauses = self.num_evictions = self.peak_bytes = 0
        self.entries: list[PausedPrefill] = []
        self._pauses_of: Counter[int] = Counter()
        self._resumed_at: dict[int, int] = {}  # prompt_idx -> its offset when it resumed

    def __len__(self) -> int:
        """The number of paused prompts."""
        return len(self.entries)

    @property
    def nbytes(self) -> int:
        """The bytes of the keys and values that all paused prompts store."""
        return sum(entry.nbytes for entry in self.entries)

    def gives_way(self, prefill: Request, arrival: Arrival, now_s: float) -> bool:
        """Whether a running prefill, which arrived as `arrival`, may be paused at `now_s`.

        It may if more than long_tokens of its tokens are left, it was paused fewer than max_pauses times, it
        has computed a chunk since it started or resumed, and it is not overdue.
        """
        idx = prefill.prompt_idx
        return (
            len(prefill.prefill_tokens) - prefill.offset > self.long_tokens
            and self._pauses_of[idx] < self.max_pauses
            and prefill.offset > self._resumed_at.get(idx, 0)
            and not is_overdue(arrival, now_s, self.max_wait_s)
        )

    def add(self, prefill: Request, arrival: Arrival) -> None:
        """Keep a prompt between two chunks, and count the pause.

        It keeps its cache, in 8 bits if kv_bits is 8, unless `evict` drops it.
        """
        packed = [PackedKv(layer) for layer in prefill.kv_cache if self.kv_bits]
        self.entries.append(PausedPrefill(prefill, arrival, packed))
        self._pauses_of[prefill.prompt_idx] += 1
        self.num_pauses += 1
        if self.nbytes > self.limit_bytes:
            self.evict()
        self.peak_bytes = max(self.peak_bytes, self.nbytes)

    def peek(self, now_s: float) -> Arrival | None:
        """Returns the most urgent paused prompt by `urgency`, or None if none is paused."""
        return next((entry.arrival for entry in self._by_urgency(now_s)), None)

    def resume(self, now_s: float) -> Request:
        """Remove the most urgent prompt and return it, ready for a chunk at its offset. Raises IndexError if
        none is paused.
        """
        entry = self._by_urgency(now_s)[0]
        self.entries.remove(entry)
        for packed, layer in zip(entry.packed, entry.prefill.kv_cache, strict=False):  # none or all
            packed.restore(layer)
        self._resumed_at[entry.prefill.prompt_idx] = entry.prefill.offset
        return entry.prefill

    def evict(self) -> None:
        """Drop caches until all paused prompts together store at most limit_bytes; count dropped caches.

        The cache that is cheapest to compute again, with the fewest computed tokens, is dropped first; if
        several have equally few, the earliest arrival. A prompt that loses its cache stays paused and starts
        again at offset 0.
        """
        while self.nbytes > self.limit_bytes:
            holding = [entry for entry in self.entries if entry.nbytes]
            entry = min(holding, key=lambda each: (each.prefill.offset, each.arrival.arrival_s))
            entry.packed.clear()
            entry.prefill.release()
            entry.prefill.offset = 0
            self.num_evictions += 1

    def release(self) -> None:
        """Free the memory of all paused prompts and forget them."""
        for entry in self.entries:
            entry.prefill.release()
        self.entries.clear()

    def _by_urgency(self, now_s: float) -> list[PausedPrefill]:
        return sorted(self.entries, key=lambda each: urgency(each.arrival, now_s, self.max_wait_s))
