"""What goes to the disk: blocks and states that can be found since the last step."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from tiny_llm_lab.serving.prefix_disk.folder import Bytes, Folder, name_of
from tiny_llm_lab.serving.prefix_disk.kv_rows import KvRows

if TYPE_CHECKING:
    from tiny_llm_ref.cache.prefix_cache import BlockKey, PrefixCache
    from tiny_llm_ref.cache.snapshots import StateSnapshots
    from tiny_llm_ref.engine.sequence import TokenSequence


_MOST_BYTES: Final = 256 << 20  # that wait in memory for a slow disk


class Writer:
    """Runs calls in their order, on a thread that begins with the first."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most = most_bytes
        self._calls: queue.Queue[tuple[Callable[[], None], int] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="prefix-writer", daemon=True)
        self._waiting = 0
        self._lock = threading.Lock()

    def has_room(self, nbytes: int) -> bool:
        """Whether a call that holds `nbytes` would be taken; one always is when none waits."""
        return self._waiting == 0 or self._waiting + nbytes <= self._most

    def submit(self, call: Callable[[], None], nbytes: int = 0) -> None:
        """Run `call`, which holds `nbytes`, after those before it."""
        with self._lock:
            self._waiting += nbytes
        self._calls.put((call, nbytes))
        if not self._thread.ident:
            self._thread.start()

    def close(self, seconds: float = 10.0) -> None:
        """Run what waits, for at most so long, and end."""
        self._calls.put(None)
        if self._thread.ident:
            self._thread.join(seconds)

    def _run(self) -> None:
        while (taken := self._calls.get()) is not None:
            call, nbytes = taken
            try:
                call()
            finally:
                with self._lock:
                    self._waiting -= nbytes


# Bytes that are copied after a step: a few milliseconds. The rest waits in the blocks for the next one.
_MOST_COPIED: Final = 32 << 20


class Saver:
    """Copies what is new, on the engine's thread, and lets a `Writer` write it."""

    def __init__(self, folder: Folder, writer: Writer, root: bytes) -> None:
        """`root` as in `name_of`. Nothing is saved before `watch`."""
        self._folder, self._writer, self._root = folder, writer, root
        self._counts = folder.counts
        self._blocks: deque[BlockKey] = deque()
        self._states: dict[BlockKey, int] = {}
        self._passing: dict[BlockKey, int] = {}  # of answers: each newer one replaces the one before
        self._is_paused = self._is_touching = False

    def watch(self, cache: PrefixCache, rows: KvRows) -> None:
        """Save what `cache` gets from now on; nothing of a cache before."""
        self._cache, self._rows = cache, rows
        self._blocks.clear()
        self._states.clear()
        self._passing.clear()
        cache.on_insert = self._inserted
        if rows.state_bytes:
            cast("StateSnapshots", cache.snapshots).on_add = self._added

    def save(self) -> bool:
        """Copy at most `_MOST_COPIED` bytes of blocks; returns whether something is left."""
        self._save_blocks(_MOST_COPIED // self._rows.block_bytes + 1)
        while self._states and self._writer.has_room(self._rows.state_bytes):
            key, number = self._states.popitem()
            if self._cache.snapshots.has(key):
                self._write(b"states", key, self._rows.copy_states(number))
            else:
                self._counts.num_dropped_blocks += 1
        return bool(self._blocks or self._states)

    def ended(self, running: Sequence[TokenSequence]) -> None:
        """A request has left: the last snapshot of its answer, where the next turn goes on, is saved too.

        `running` are those that have not.
        """
        size = self._cache.pool.block_size
        ends = [(each, each.num_computed_tokens // size * size) for each in running if self._passing]
        newest = {tuple(each.tokens_between(end - size, end)) for each, end in ends if end}
        for key in [each for each in self._passing if each.token_ids not in newest]:
            number = self._passing.pop(key)
            if self._cache.snapshots.has(key):
                self._states[key] = number

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is inserted meanwhile comes from the disk."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def used(self, keys: Sequence[BlockKey]) -> None:
        """These were found in memory, so they are used on the disk as well."""
        if keys and not self._is_touching:
            self._is_touching = True
            self._writer.submit(partial(self._touch, [each.digest for each in keys]))

    def _save_blocks(self, most: int) -> None:
        keys: list[BlockKey] = []
        blocks: list[int] = []
        nbytes = self._rows.block_bytes
        while self._blocks and len(keys) < most and self._writer.has_room((len(keys) + 1) * nbytes):
            key = self._blocks.popleft()
            if (result := self._cache.find(key)) is None:  # another request took the block
                self._counts.num_dropped_blocks += 1
                continue
            keys.append(key)
            blocks.append(result[1])
        if keys:
            for key, row in zip(keys, self._rows.copy(blocks), strict=True):
                self._write(b"block", key, row)

    def _write(self, kind: bytes, key: BlockKey, row: Bytes) -> None:
        name = name_of(self._root, kind, key.digest)
        self._writer.submit(partial(self._folder.write, name, row), len(row))

    def _touch(self, digests: Sequence[bytes]) -> None:
        kinds = (b"block", b"states") if self._rows.state_bytes else (b"block",)
        self._folder.touch([name_of(self._root, kind, each) for each in digests for kind in kinds])
        self._is_touching = False

    def _inserted(self, key: BlockKey) -> None:
        if not self._is_paused:
            self._blocks.append(key)
            if len(self._blocks) > self._cache.pool.num_blocks:
                self._blocks.popleft()
                self._counts.num_dropped_blocks += 1

    def _added(self, key: Hashable, number: int, is_passing: bool) -> None:
        block_key = cast("BlockKey", key)  # snapshots would take any key; those of a cache are its own
        for kept in (self._states, self._passing):
            kept.pop(block_key, None)
        if not self._is_paused:
            # One that passes would be written after every block of an answer.
            (self._passing if is_passing else self._states)[block_key] = number
