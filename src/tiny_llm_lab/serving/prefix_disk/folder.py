"""The folder: a file for each block, the least recently used ones deleted. Any process may use it as well."""

import contextlib
import hashlib
import itertools
import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tiny_llm_lab.runtime.memory import readable
from tiny_llm_lab.types import UserError
from tiny_llm_lab.types.scheduling.no_prefix_disk import DiskCounts

Bytes = bytes | memoryview
MAGIC: Final = b"tinykv01"
_NAME_BYTES: Final = 32
_HEAD: Final = len(MAGIC) + _NAME_BYTES
OVERHEAD: Final = _HEAD + hashlib.sha256().digest_size


def name_of(root: bytes, kind: bytes, digest: bytes) -> bytes:
    """32 bytes that name a file: `kind` says of what, `digest` of which prefix, `root` of which model."""
    return hashlib.sha256(root + kind + digest).digest()


def parts_of(name: bytes, payload: Bytes) -> tuple[Bytes, Bytes, Bytes]:
    """What a file has, in order."""
    head = MAGIC + name
    return head, payload, _checksum(head, payload)


def payload_of(name: bytes, data: bytes) -> Bytes | None:
    """The payload of a file's bytes; None unless they are what `parts_of` gave for this name."""
    end = len(data) - OVERHEAD + _HEAD
    head, payload = data[:_HEAD], memoryview(data)[_HEAD:end]
    is_whole = len(data) >= OVERHEAD and head == MAGIC + name and data[end:] == _checksum(head, payload)
    return payload if is_whole else None


def _checksum(head: bytes, payload: Bytes) -> bytes:
    digest = hashlib.sha256(head)
    digest.update(payload)
    return digest.digest()


_LOG: Final = logging.getLogger("tiny_llm.prefix_disk")
# A process writes up to this part of the limit before it counts again what everybody wrote.
_PARTS: Final = 16
_LEFT_BEHIND_S: Final = 3600.0  # no write takes that long: its process has been killed
_SCRATCH: Final = ".part"


class _File(NamedTuple):
    used_s: float
    nbytes: int
    path: str


class Folder:
    """Files by their 32-byte names. No method raises OSError: what fails is a miss, or is not written.

    Several processes together stay below the limit plus 1/16 of it for each but the first. Used by a reader
    and a writer on threads of their own.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        """Makes the folder, for its owner only. Sets counts. Raises UserError if we can't write there."""
        self._path, self._limit = path / "blocks", limit_bytes
        self.counts = DiskCounts()
        self._room = -1  # bytes that may be written before the next count
        self._said: set[str] = set()
        self._numbers = itertools.count()
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = self._scratch(self._path / "probe")
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise UserError(
                f"--prefix-cache-dir {path}: cannot write there ({error.strerror}): choose another folder"
            ) from None

    def require_room(self, nbytes: int) -> None:
        """Raise UserError unless there is room for 16 files with payloads of `nbytes`."""
        if (least := _PARTS * (nbytes + OVERHEAD)) > self._limit:
            raise UserError(
                f"--prefix-cache-disk is {readable(self._limit)}, and 16 files of this model take "
                f"{readable(least)}: raise it"
            )

    def has(self, name: bytes) -> bool:
        """Whether there is such a file; its contents may still be wrong."""
        with contextlib.suppress(OSError):  # we may not look there
            return self._place(name).exists()
        return False

    def read(self, name: bytes, nbytes: int) -> Bytes | None:
        """A payload of `nbytes`, just used; None if there is none. A damaged file is deleted."""
        place = self._place(name)
        try:
            with place.open("rb") as file:
                # One byte more, to see a file that is too long.
                data = file.read(nbytes + OVERHEAD + 1)
            payload = payload_of(name, data) if len(data) == nbytes + OVERHEAD else None
            if payload is not None:
                os.utime(place)
                self.counts.num_read_bytes += nbytes
                return payload
            self.counts.num_damaged_blocks += 1
            self._say("damaged", "a damaged file is deleted, and its tokens are computed again")
            place.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            self._say(f"read {error.errno}", f"cannot read ({error.strerror}), and compute instead")
        return None

    def touch(self, names: list[bytes]) -> None:
        """These have been used now, as far as they are there."""
        for name in names:
            with contextlib.suppress(OSError):
                os.utime(self._place(name))

    def write(self, name: bytes, payload: Bytes) -> None:
        """Keep a payload, unless it is there already. It appears as a whole or not at all."""
        place, nbytes = self._place(name), len(payload) + OVERHEAD
        try:
            if place.exists():
                os.utime(place)
                return
            for folder in (self._path, place.parent):  # somebody may have removed both; parents have no mode
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_room(nbytes)
            self._write(place, parts_of(name, payload))
        except OSError as error:
            self.counts.num_dropped_blocks += 1
            self._say(
                f"write {error.errno}", f"cannot write ({error.strerror}): prefixes stay in memory only"
            )
            return
        self.counts.num_written_blocks += 1
        self.counts.num_written_bytes += nbytes

    def _write(self, place: Path, parts: Sequence[Bytes]) -> None:
        scratch = self._scratch(place)
        try:
            with scratch.open("wb", buffering=0) as file:
                for part in parts:
                    view = memoryview(part)
                    while view:
                        view = view[file.write(view) :]
            scratch.replace(place)
        except OSError:
            scratch.unlink(missing_ok=True)
            raise

    def _make_room(self, nbytes: int) -> None:
        """Delete the least recently used files if all, and what all processes may add, pass the limit."""
        self._room -= nbytes
        if self._room >= 0:
            return
        files = sorted(self._files())
        total, most = sum(each.nbytes for each in files), self._limit - self._limit // _PARTS
        old_s = time.time() - _LEFT_BEHIND_S
        for used_s, size, path in files:
            is_left_behind = path.endswith(_SCRATCH) and used_s < old_s
            if total <= most and not is_left_behind:
                continue
            try:
                Path(path).unlink()
            except FileNotFoundError:  # by another process
                total -= size
                continue
            total -= size
            self.counts.num_evicted_blocks += not path.endswith(_SCRATCH)
        self._room = self._limit // _PARTS - nbytes

    def _files(self) -> Iterator[_File]:
        for shard in os.scandir(self._path):
            if not shard.is_dir(follow_symlinks=False) or len(shard.name) != 2:
                continue
            for entry in os.scandir(shard.path):
                if entry.name[:2] != shard.name or len(entry.name) < 64:
                    continue  # not ours
                try:
                    result = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                yield _File(result.st_mtime, result.st_size, entry.path)

    def _place(self, name: bytes) -> Path:
        text = name.hex()
        return self._path / text[:2] / text

    def _scratch(self, place: Path) -> Path:
        return place.with_name(f"{place.name}.{os.getpid()}.{next(self._numbers)}{_SCRATCH}")

    def _say(self, cause: str, what: str) -> None:
        """One line for each cause, however often it happens."""
        if cause not in self._said:
            self._said.add(cause)
            _LOG.warning("%s: %s", self._path, what)
