"""What --prefix-cache-dir refuses, in one line, and what makes a model another one."""

import os
import shutil

import pytest
from tests.helpers.disk_faults import disked
from tests.helpers.fuzz_models import Models

import tiny_llm_ref
from tiny_llm_lab import LLM, load_checkpoint
from tiny_llm_lab.runtime.models.registry import find_folder
from tiny_llm_lab.serving.prefix_disk import building
from tiny_llm_lab.serving.prefix_disk.building import fingerprint
from tiny_llm_lab.serving.prefix_disk.folder import Folder
from tiny_llm_lab.serving.prefix_disk.prefix_disk import PrefixDisk
from tiny_llm_lab.types import UserError


def test_a_size_of_no_folder():
    with pytest.raises(UserError, match="prefix_cache_disk is the size of a folder: name it with"):
        LLM(prefix_cache_disk="1G")


def test_a_folder_that_is_none_and_an_engine_that_cannot(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(
        UserError, match=r"file: cannot write there \(Not a directory\): choose another folder"
    ):
        LLM(prefix_cache_dir=str(file))
    engine = disked(Models(tiny_llm_ref).of("qwen3", "off"), Folder(tmp_path, 1 << 30))
    del engine.core.prefix_cache.on_insert
    with pytest.raises(UserError, match="needs the reference's cache: choose --solution ref"):
        PrefixDisk(Folder(tmp_path, 1 << 30), b"").watch(engine)


def test_a_model_is_another_one_if_a_byte_is(tmp_path, monkeypatch):
    model = tmp_path / "model"
    shutil.copytree(find_folder("default"), model)
    notes = tmp_path / "notes"
    notes.mkdir()

    def found(package="tiny_llm_ref"):
        checkpoint = load_checkpoint(model)
        return fingerprint(checkpoint, tiny_llm_ref.build_model(checkpoint), package, notes)

    first, weights = found(), model / "model.safetensors"
    assert found() == first
    [note] = notes.iterdir()
    for text in ("", "00 11", note.read_text()[:-1], "\udcff"):
        note.write_text(text, errors="surrogateescape")
        assert found() == first, "a damaged note is not believed"
    times = weights.stat()
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    second = found()
    assert second != first, "the last byte, of the same size and time"
    assert found("tiny_llm_lab.types") != second, "other code"
    read = building._code_in
    for folder in ("native", "models/weights", "pictures"):
        place = f"tiny_llm_lab.runtime.{folder}/"

        def code_in(files, name, place=place):
            return ((path, text + b"#" * path.startswith(place)) for path, text in read(files, name))

        monkeypatch.setattr(building, "_code_in", code_in)
        assert found() != second, f"another version of {folder}"
