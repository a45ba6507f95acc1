"""Files of a checkpoint that cannot be read: links to nothing, pipes, devices, permissions, sizes."""

import errno
import os
from pathlib import Path

import pytest
from tests.helpers.checkpoints import complaint, overwritten, split_into_shards

AGAIN = "fetch the whole checkpoint again"
WEIGHTS, CONFIG, INDEX = "model.safetensors", "config.json", "model.safetensors.index.json"
READ = (WEIGHTS, CONFIG, "tokenizer.json", "tokenizer_config.json", "generation_config.json")
SHARD = "model-00002-of-00003.safetensors"


def replaced(name, make):
    def damage(folder):
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return damage


def unfinished(path):
    """A snapshot of the hub's cache whose blob is not there."""
    path.symlink_to("../../blobs/abc")


UNFINISHED = f"it links to a missing file, because its download did not finish: {AGAIN}"
NOT_REGULAR = f"not a regular file: {AGAIN}"
LOOP = f"cannot open it ({os.strerror(errno.ELOOP)}): {AGAIN}"
NO_NAMES = "it has no weight_map of file names: fetch the file again"
CASES = [
    *((replaced(name, unfinished), name, UNFINISHED) for name in (*READ, INDEX)),
    (lambda folder: (split_into_shards(folder), replaced(SHARD, unfinished)(folder)), SHARD, UNFINISHED),
    *((replaced(name, lambda path: path.symlink_to(path.name)), name, LOOP) for name in (WEIGHTS, CONFIG)),
    *((replaced(name, os.mkfifo), name, NOT_REGULAR) for name in READ),
    *((replaced(name, lambda path: path.symlink_to("/dev/zero")), name, NOT_REGULAR) for name in READ),
    (replaced(WEIGHTS, Path.mkdir), WEIGHTS, NOT_REGULAR),
    (overwritten(INDEX, b'{"weight_map": {"a": "%s"}}' % (b"x" * 5000)), INDEX, NO_NAMES),
]


@pytest.mark.parametrize(("damage", "file", "says"), CASES, ids=[f"{file}-{says}" for _, file, says in CASES])
def test_a_file_that_cannot_be_read_is_one_line(copy, damage, file, says):
    folder = copy("random:qwen3-shrunk")
    damage(folder)
    assert complaint(folder) == f"{folder / file}: {says}"


@pytest.mark.parametrize("file", READ)
def test_a_file_that_may_not_be_read_is_not_called_damaged(copy, file, monkeypatch):
    """The system's answer is imitated: to root it gives another one."""
    folder, opened = copy("random:qwen3-shrunk"), Path.open

    def refused(path, *args, **kwargs):
        if path == folder / file:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refused)
    assert complaint(folder) == f"{folder / file}: you may not read it: use chmod, or run as its owner"


@pytest.mark.parametrize("file", [CONFIG, "generation_config.json"])
def test_a_config_of_megabytes_is_refused_by_its_size(copy, file):
    folder, limit = copy("random:qwen3-shrunk"), 4 << 20
    os.truncate(folder / file, limit)
    assert "cannot read it (Extra data" in complaint(folder)
    os.truncate(folder / file, limit + 1)
    assert complaint(folder) == f"{folder / file}: larger than {limit} bytes: fetch the file again"
