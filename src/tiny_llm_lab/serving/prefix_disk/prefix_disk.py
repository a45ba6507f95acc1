"""The prefixes of an engine in a folder: the next process finds them. Written and read beside the steps.

Requests whose prefixes are on the disk wait outside of the queue until these are in memory.
"""

from __future__ import annotations

import hashlib
import logging
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast
from weakref import WeakSet

from tiny_llm_lab.runtime.growing_pool import GrowingPool
from tiny_llm_lab.serving.prefix_disk.folder import Folder, name_of
from tiny_llm_lab.serving.prefix_disk.kv_rows import KvRows
from tiny_llm_lab.serving.prefix_disk.reader import Reader, Row, Wanted
from tiny_llm_lab.serving.prefix_disk.saver import Saver, Writer
from tiny_llm_lab.types import OnStep, StepPlan, StepStats, UserError
from tiny_llm_lab.types.scheduling.defaults import ignore_step
from tiny_llm_lab.types.scheduling.no_prefix_disk import NoPrefixDisk

if TYPE_CHECKING:
    from tiny_llm_ref import Engine, TokenSequence
    from tiny_llm_ref.cache.prefix_cache import BlockKey, PrefixCache
    from tiny_llm_ref.cache.snapshots import StateSnapshots
    from tiny_llm_ref.engine.core import EngineCore


# How long a step may be delayed by what was read: so long, or this part of the step before.
_DELAY_S: Final = 0.005
_SHARE: Final = 0.1
_PATIENCE_S: Final = 10.0  # without a row from the disk a request goes on without one
_MOST_ROWS: Final = 16  # that are put into blocks together


@dataclass(eq=False)
class _Held:
    """A request that waits, and the keys of its prompt."""

    request: TokenSequence
    keys: list[BlockKey]
    num_hit_blocks: int = 0


class ReadAhead:
    """Holds requests back, and puts what was read for them into free blocks."""

    def __init__(self, folder: Folder, saver: Saver, root: bytes) -> None:
        """`root` as in `name_of`. Nothing happens before `watch`."""
        self._folder, self._saver, self._root = folder, saver, root
        self._seen: WeakSet[TokenSequence] = WeakSet()
        self._held: dict[Wanted, _Held] = {}
        self._last_row_s = 0.0
        self._is_stuck = False  # the disk does not answer

    def watch(self, core: EngineCore, cache: PrefixCache, rows: KvRows, reader: Reader) -> None:
        """Serve this engine and its prefix cache; requests from before are gone."""
        self._core, self._cache, self._rows, self._reader = core, cache, rows, reader
        self._held.clear()

    @property
    def num_held(self) -> int:
        """Requests that are out of the queue."""
        return len(self._held)

    def forget(self, request_id: str) -> None:
        """A request has left. What is still to read for it is not read."""
        for wanted, held in list(self._held.items()):
            if held.request.request_id == request_id:
                del self._held[wanted]
                self._reader.drop(wanted)

    def let_all_go(self) -> None:
        """All requests go on without what was not read."""
        for wanted in list(self._held):
            self._resume(wanted)
            self._reader.drop(wanted)

    def look_up(self) -> None:
        """Take the requests that could run next out of the queue if the disk has more than memory."""
        queue, pool = self._core.scheduler.queue, self._cache.pool
        num_slots = self._core.config.max_num_seqs - len(queue.running) - len(self._held)
        room = pool.num_free
        for request in queue.waiting[: max(0, num_slots)]:
            room -= len(request.prompt_token_ids) // pool.block_size + 1
            if room < 0:
                return
            if request not in self._seen:
                self._seen.add(request)
                self._look_up(request)

    def _look_up(self, request: TokenSequence) -> None:
        cache = self._cache
        prompt, salt = request.pictures.keys(request.prompt_token_ids), request.cache_salt
        keys = [] if request.skip_reading_prefix_cache else cache.keys(prompt, salt)
        first = len(find_chain(cache, keys))
        self._saver.used(keys[:first])
        states: list[bytes] = []
        usable = num_usable(cache, keys[:first])
        if self._rows.state_bytes:
            states = [name_of(self._root, b"states", key.digest) for key in keys]
        wanted = Wanted([name_of(self._root, b"block", key.digest) for key in keys], states, first, usable)
        # States may be there after any block that memory has: the reader looks, as that takes a while.
        may_help = usable < first or any(map(self._folder.has, wanted.blocks[first : first + 1]))
        if may_help and not self._is_stuck:
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
            self._folder.counts.num_hit_tokens += held.num_hit_blocks * self._cache.pool.block_size
            self._core.scheduler.queue.readmit(held.request)  # before those that came meanwhile

    def _put_blocks(self, rows: Sequence[Row]) -> None:
        """Consecutive blocks of one prompt, found from now on if all before them still are."""
        held = self._held.get(rows[0].wanted)
        if held is None:
            return
        cache, first = self._cache, rows[0].index
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

    def _store(self, keys: Sequence[BlockKey], rows: Sequence[Row], blocks: Sequence[int]) -> None:
        if not blocks:
            return
        self._rows.put(blocks, [row.payload for row in rows])
        with self._saver.paused():
            for row, block in zip(rows, blocks, strict=True):
                self._cache.insert(keys[row.index], block)

    def _put_states(self, row: Row) -> None:
        held, cache = self._held.get(row.wanted), self._cache
        if held is None or len(find_chain(cache, held.keys[: row.index + 1])) <= row.index:
            return
        key, snapshots = held.keys[row.index], cast("StateSnapshots", cache.snapshots)
        if snapshots.has(key) or (number := snapshots.take()) < 0:
            return
        self._rows.put_states(number, (row.index + 1) * cache.pool.block_size, row.payload)
        with self._saver.paused():
            snapshots.add(key, number, False)
        held.num_hit_blocks = row.index + 1 - row.wanted.usable


def find_chain(cache: PrefixCache, keys: Sequence[BlockKey]) -> list[int]:
    """The blocks of the first keys, up to the first that is not found."""
    blocks: list[int] = []
    for i, key in enumerate(keys):
        if (result := cache.find(key)) is None:
            break
        blocks.append(result[1])
        # Comparing the next key ends at the parent that both have.
        if i + 1 < len(keys):
            keys[i + 1].parent = result[0]
    return blocks


def num_usable(cache: PrefixCache, found: Sequence[BlockKey]) -> int:
    """After how many of these first keys, which are found, a request can go on: of a hybrid, a snapshot."""
    count = len(found)
    while count and not cache.snapshots.has(found[count - 1]):
        count -= 1
    return count


_LOG: Final = logging.getLogger("tiny_llm.prefix_disk")
_IDLE_S: Final = 0.05  # until the writer has room again
_LAST_S: Final = 10.0  # for what is not written when the engine ends


class PrefixDisk(NoPrefixDisk):
    """Watches one engine, on the engine's thread."""

    def __init__(self, folder: Folder, fingerprint: bytes) -> None:
        """`fingerprint` is of all that keys and values depend on besides the tokens, but for their layout.

        Sets counts, those of the folder, and is_broken = False. Nothing happens before `watch`.
        """
        super().__init__()
        self.counts = folder.counts
        self._folder, self._fingerprint = folder, fingerprint
        self._last_step_s = 0.0
        self.is_broken = False

    def on_step(self, on_step: OnStep | None) -> OnStep:
        """An `on_step` for the engine to be watched, which calls the given one first."""
        first = on_step or ignore_step

        def stepped(plan: StepPlan, stats: StepStats) -> None:
            first(plan, stats)
            self._last_step_s = stats.end_s - stats.start_s
            self._save()

        return stepped

    def watch(self, engine: Engine, pools: Sequence[GrowingPool] = ()) -> None:
        """Begin. `pools` has its pool if it grows, a new one after a step that failed.

        Raises UserError for an engine without a prefix cache, or one that does not tell us what is new.
        """
        self._core, self._pools, self._writer = engine.core, pools, Writer()
        if (cache := self._core.prefix_cache) is None:
            raise UserError("--prefix-cache-dir needs a prefix cache: raise --kv-cache-memory")
        if not hasattr(cache, "on_insert"):
            raise UserError("--prefix-cache-dir needs the reference's cache: choose --solution ref")
        rows = self._kv_rows()
        self._folder.require_room(max(rows.block_bytes, rows.state_bytes))
        root = hashlib.sha256(self._fingerprint + rows.shape.encode()).digest()
        self._saver = Saver(self._folder, self._writer, root)
        self._ahead = ReadAhead(self._folder, self._saver, root)
        self._reader = Reader(self._folder, rows.block_bytes, rows.state_bytes)
        self._begin(cache, rows)
        # Also if nobody releases the engine, but the program ends.
        self._end = weakref.finalize(self, _close, self._writer, self._reader)

    @property
    def num_held(self) -> int:
        """As in `NoPrefixDisk`."""
        return self._ahead.num_held

    def before_step(self) -> None:
        """Hold back requests for what the disk has, and let those go whose prefixes are in memory now."""
        if self.is_broken:
            return
        try:
            cache = self._core.prefix_cache
            if cache is not None and cache is not self._cache:  # after a step that failed
                self._begin(cache, self._kv_rows())
            self._ahead.look_up()
            self._ahead.take_in(self._last_step_s)
        except Exception:
            self._give_up()

    def forget(self, request_id: str) -> None:
        """A request has left the engine."""
        self._ahead.forget(request_id)
        self._saver.ended(self._core.scheduler.running)

    def idle(self) -> float | None:
        """Save more of what is new; returns seconds until the next call, None for not before a step."""
        return _IDLE_S if self._save() else None

    def release(self) -> None:
        """Save what is new, for some seconds at most, and end."""
        end_s = time.monotonic() + _LAST_S
        while self._end.alive and self._save() and time.monotonic() < end_s:
            time.sleep(0.001)
        self._end()

    def _begin(self, cache: PrefixCache, rows: KvRows) -> None:
        self._cache = cache
        self._saver.watch(cache, rows)
        self._ahead.watch(self._core, cache, rows, self._reader)

    def _kv_rows(self) -> KvRows:
        proposer = self._core.options.proposer
        return KvRows(self._core.kv_caches, self._pools, proposer.is_stored if proposer else bytearray())

    def _save(self) -> bool:
        if self.is_broken or self._core.prefix_cache is not self._cache:
            return False
        try:
            return self._saver.save()
        except Exception:
            self._give_up()
            return False

    def _give_up(self) -> None:
        """A mistake of ours must not end a request: go on without the disk."""
        self.is_broken = True
        _LOG.exception("prefixes are kept in memory only from now on")
        self._ahead.let_all_go()


def _close(writer: Writer, reader: Reader) -> None:
    reader.close()
    writer.close(_LAST_S)
