"""The prefixes of an engine in a folder: the next process finds them. Written and read beside the steps."""

from __future__ import annotations

import hashlib
import logging
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tiny_llm_lab.runtime.growing_pool import GrowingPool
from tiny_llm_lab.serving.prefix_disk.folder import Folder
from tiny_llm_lab.serving.prefix_disk.kv_rows import KvRows
from tiny_llm_lab.serving.prefix_disk.read_ahead import ReadAhead
from tiny_llm_lab.serving.prefix_disk.reader import Reader
from tiny_llm_lab.serving.prefix_disk.saver import Saver, Writer
from tiny_llm_lab.types import OnStep, StepPlan, StepStats, UserError
from tiny_llm_lab.types.scheduling.defaults import ignore_step
from tiny_llm_lab.types.scheduling.no_prefix_disk import NoPrefixDisk

if TYPE_CHECKING:
    from tiny_llm_ref import Engine
    from tiny_llm_ref.cache.prefix_cache import PrefixCache

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
        return KvRows(self._core.kv_cache, self._core.model.config, self._pools)

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
