"""The folder: what stays when it is full, and files that are not its own."""

import errno
import os
import random
import shutil
from functools import partial
from pathlib import Path

import pytest
from tests.helpers.disk_faults import files_in

from tiny_llm_lab.serving.prefix_disk.folder import OVERHEAD, Folder

SIZE, ROOM = 500, 64


@pytest.mark.parametrize("seed", range(6))
def test_the_least_recently_used_go_whoever_wrote_them(tmp_path, seed):
    rng = random.Random(seed)
    limit = ROOM * (SIZE + OVERHEAD)
    folders = [Folder(tmp_path, limit) for _ in range(rng.choice((1, 2, 3)))]
    used = {}
    for now in range(500):
        folder, is_known = rng.choice(folders), used and rng.random() < 0.5
        name = rng.choice(sorted(used)) if is_known else rng.randbytes(32)
        payload = name * SIZE
        if is_known and rng.random() < 0.7:
            found = folder.read(name, SIZE)
            assert found in (None, payload[:SIZE])
        else:
            folder.write(name, payload[:SIZE])
            found = payload
        if found is not None:
            used[name] = now
            file = tmp_path / "blocks" / name.hex()[:2] / name.hex()
            assert file.stat().st_mtime > 500, "what is read, or written again, is used now"
            os.utime(file, (now, now))
        if now % 7:
            continue  # looking takes longer than writing
        kept = {bytes.fromhex(each.name) for each in files_in(tmp_path)}
        assert len(kept) * (SIZE + OVERHEAD) <= limit * (15 + len(folders)) / 16
        oldest = min(used[each] for each in kept)
        assert all(used[each] < oldest for each in used.keys() - kept), "a file that was used later has gone"
    assert len(kept) > ROOM * 0.8, "room is used"
    assert sum(folder.counts.num_evicted_blocks for folder in folders) > 0


def test_files_of_others_stay_and_those_of_killed_writers_go(tmp_path):
    folder = Folder(tmp_path, 20 * (SIZE + OVERHEAD))
    (tmp_path / "blocks" / "ab").mkdir()
    mine = [tmp_path / "letter.txt", tmp_path / "blocks" / "ab" / "letter.txt"]
    for each in mine:
        each.write_bytes(bytes(10_000))
        os.utime(each, (0, 0))
    left = tmp_path / "blocks" / "ab" / f"{'ab' * 32}.1.0.part"
    left.write_bytes(bytes(50))
    os.utime(left, (0, 0))
    for number in range(30):
        folder.write(bytes([number]) * 32, bytes(SIZE))
    assert all(each.exists() for each in mine)
    assert not left.exists()
    assert folder.counts.num_evicted_blocks > 0
    assert (tmp_path / "blocks").stat().st_mode & 0o077 == 0, "prompts are nobody else's business"


def denied(*_, **__):
    raise PermissionError(errno.EACCES, "denied")


@pytest.mark.parametrize("fault", ["removed", "a file", "denied"])
def test_a_folder_that_somebody_changes_while_we_run_is_used_again_later(tmp_path, monkeypatch, fault):
    path, aside, payload = tmp_path / "parent" / "prefixes", tmp_path / "aside", bytes(SIZE)
    folder, place = Folder(path, 1 << 20), path if fault == "a file" else path.parent
    folder.write(b"1" * 32, payload)
    place.rename(aside)
    with monkeypatch.context() as patch:
        if fault == "a file":
            place.write_text("")
        for name in ("exists", "mkdir", "open") if fault == "denied" else ():
            patch.setattr(Path, name, denied)
        assert not folder.has(b"1" * 32) and folder.read(b"1" * 32, SIZE) is None
        folder.write(b"2" * 32, payload)
        assert folder.has(b"2" * 32) == (fault == "removed")
    if fault == "removed":
        assert (path / "blocks").stat().st_mode & 0o077 == 0, "prompts are nobody else's business"
    if place.exists():
        (place.unlink if fault == "a file" else partial(shutil.rmtree, place))()
    aside.rename(place)
    folder.write(b"3" * 32, payload)
    assert folder.read(b"1" * 32, SIZE) == folder.read(b"3" * 32, SIZE) == payload


def test_each_cause_is_said_once(tmp_path, caplog):
    folder = Folder(tmp_path, 1 << 20)
    for number in range(5):
        name = bytes([number]) * 32
        folder.write(name, bytes(SIZE))
        files_in(tmp_path)[0].write_bytes(b"short")
        assert folder.read(name, SIZE) is None
        assert not folder.has(name), "it can be written again"
    assert len(caplog.messages) == 1
    assert folder.counts.num_damaged_blocks == 5
