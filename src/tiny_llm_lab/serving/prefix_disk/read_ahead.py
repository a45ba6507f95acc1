"""Requests whose prefixes are on the disk: they wait outside of the queue until these are in memory."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakSet

from tiny_llm_lab.serving.prefix_disk.cache_access import Cache, Core, Key, Request, find_chain
from tiny_llm_lab.serving.prefix_disk.folder import Folder
from tiny_llm_lab.serving.prefix_disk.kv_rows import KvRows
from tiny_llm_lab.serving.prefix_disk.reader import Reader, Row, Wanted
from tiny_llm_lab.serving.prefix_disk.record import name_of
from tiny_llm_lab.serving.prefix_disk.saver import Saver

# How long a step may be delayed by what was read: so long, or this part of the step before.
_DELAY_S: Final = 0.005
_SHARE: Final = 0.1
_PATIENCE_S: Final = 10.0  # without a row from the disk a request goes on without one
_MOST_ROWS: Final = 16  # that are put into blocks together


@dataclass(eq=False)
class _Held:
    """A request that waits, and the keys of its prompt."""

    request: Request
    keys: list[Key]
    num_hit_blocks: int = 0


class ReadAhead:
    """Holds requests back, and puts what was read for them into free blocks."""

    def __init__(self, folder: Folder, saver: Saver, root: bytes) -> None:
        """`root` as in `name_of`. Nothing happens before `watch`."""
        self._folder, self._saver, self._root = folder, saver, root
        self._seen: WeakSet[Request] = WeakSet()
        self._held: dict[Wanted, _Held] = {}
        self._last_row_s = 0.0
        self._is_stuck = False  # the disk does not answer

    def watch(self, core: Core, rows: KvRows, reader: Reader) -> None:
        """Serve this engine; requests from before are gone."""
        self._core, self._rows, self._reader = core, rows, reader
        self._held.clear()

    @property
    def num_held(self) -> int:
        """Requests that are out of the queue."""
        return len(self._held)

    def forget(self, request_id: str) -> None:
        """A request has left. What is still being read for it is not used."""
        for wanted, held in list(self._held.items()):
            if held.request.request_id == request_id:
                del self._held[wanted]

    def let_all_go(self) -> None:
        """All requests go on without what was not read."""
        for wanted in list(self._held):
            self._resume(wanted)

    def look_up(self) -> None:
        """Take the requests that could run next out of the queue if the disk has more than memory."""
        queue, pool = self._core.scheduler.queue, self._core.prefix_cache.pool
        num_slots = self._core.config.max_num_seqs - len(queue.running) - len(self._held)
        room = pool.num_free
        for request in queue.waiting[: max(0, num_slots)]:
            room -= len(request.prompt_token_ids) // pool.block_size + 1
            if room < 0:
                return
            if request not in self._seen:
                self._seen.add(request)
                self._look_up(request)

    def _look_up(self, request: Request) -> None:
        cache = self._core.prefix_cache
        prompt, salt = request.prompt_token_ids, request.cache_salt
        keys = [] if request.skip_reading_prefix_cache else cache.keys(prompt, salt)
        first = len(find_chain(cache, keys))
        self._saver.used(keys[:first])
        states: list[bytes] = []
        usable = first
        if self._rows.state_bytes:
            states = [name_of(self._root, b"states", key.digest) for key in keys]
            while usable and not cache.snapshots.has(keys[usable - 1]):
                usable -= 1
        wanted = Wanted([name_of(self._root, b"block", key.digest) for key in keys], states, first, usable)
        if not self._is_stuck and any(map(self._folder.has, wanted.may_help)):
            if not self._held:
                self._last_row_s = time.monotonic()
            self._held[wanted] = _Held(request, keys)
            self._core.scheduler.queue.remove(request)
            self._reader.start(wanted)

    def take_in(self, last_step_s: float) -> None:
        """Put what was read into free blocks, and requests that have all into the queue.

        Waits for the disk, for a few milliseconds, only if all requests do.
        """
        queue, start_s = self._core.scheduler.queue, time.monotonic()
        until_s = start_s + max(_DELAY_S, _SHARE * last_step_s)
        rows: list[Row] = []
        while (self._held or self._is_stuck) and (now_s := time.monotonic()) < until_s:
            is_alone = not (queue.running or queue.waiting or rows)
            row = self._reader.take(until_s - now_s if is_alone else 0.0)
            is_next = row is not None and row.kind == "block" and (not rows or row.wanted is rows[-1].wanted)
            if rows and (not is_next or len(rows) == _MOST_ROWS):
                self._put_blocks(rows)
                rows = []
            if row is None:
                if not is_alone or not self._is_patient():
                    break
                continue
            self._last_row_s, self._is_stuck = time.monotonic(), False
            if row.kind == "block":
                rows.append(row)
            elif row.kind == "states":
                self._put_states(row)
            else:
                self._resume(row.wanted)
        if rows:
            self._put_blocks(rows)
        if self._held and not self._is_patient():
            self._is_stuck = True
            self.let_all_go()

    def _is_patient(self) -> bool:
        return time.monotonic() < self._last_row_s + _PATIENCE_S

    def _resume(self, wanted: Wanted) -> None:
        if (held := self._held.pop(wanted, None)) is not None:
            self._folder.counts.num_hit_tokens += (
                held.num_hit_blocks * self._core.prefix_cache.pool.block_size
            )
            # `add` would put it behind those that came meanwhile; one that was preempted keeps its place.
            self._core.scheduler.queue.readmit(held.request)

    def _put_blocks(self, rows: Sequence[Row]) -> None:
        """Consecutive blocks of one prompt, found from now on if all before them still are."""
        held = self._held.get(rows[0].wanted)
        if held is None:
            return
        cache, first = self._core.prefix_cache, rows[0].index
        before = find_chain(cache, held.keys[: first + len(rows)])
        new = [row for row in rows if row.index >= len(before)]
        if len(before) < first or not new:
            return
        cache.pool.share(before)  # so that they are not taken for the new ones
        blocks: list[int] = []
        try:
            blocks = cache.pool.allocate(min(len(new), cache.pool.num_free))
            self._store(held.keys, new[: len(blocks)], blocks)
        finally:
            cache.pool.free([*before, *blocks])
        if not self._rows.state_bytes:
            held.num_hit_blocks += len(blocks)

    def _store(self, keys: Sequence[Key], rows: Sequence[Row], blocks: Sequence[int]) -> None:
        if not blocks:
            return
        self._rows.put(blocks, [row.payload for row in rows])
        cache: Cache = self._core.prefix_cache
        with self._saver.paused():
            for row, block in zip(rows, blocks, strict=True):
                cache.insert(keys[row.index], block)

    def _put_states(self, row: Row) -> None:
        held, cache = self._held.get(row.wanted), self._core.prefix_cache
        if held is None or len(find_chain(cache, held.keys[: row.index + 1])) <= row.index:
            return
        key = held.keys[row.index]
        if cache.snapshots.has(key) or (number := cache.snapshots.take()) < 0:
            return
        self._rows.put_states(number, (row.index + 1) * cache.pool.block_size, row.payload)
        with self._saver.paused():
            cache.snapshots.add(key, number, False)
        held.num_hit_blocks = row.index + 1 - row.wanted.usable
