"""The folder that an engine's settings ask for."""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import cast

import mlx.core as mx

from tiny_llm_lab.runtime.kv_memory import parse_size
from tiny_llm_lab.runtime.models.weights.safetensors_file import weight_files
from tiny_llm_lab.runtime.native.compiling.isa import selected_isa
from tiny_llm_lab.runtime.native.settings import kernels_mode
from tiny_llm_lab.serving.options.engine_settings import EngineSettings
from tiny_llm_lab.serving.options.model_options import Loaded
from tiny_llm_lab.serving.prefix_disk.folder import Folder
from tiny_llm_lab.serving.prefix_disk.prefix_disk import PrefixDisk
from tiny_llm_lab.types import Checkpoint, PagedModel, Weight
from tiny_llm_lab.types.scheduling.no_prefix_disk import NoPrefixDisk

_CODE = (".py", ".cpp", ".h", ".metal")
# What computes besides a solution: kernels, the reading of weights, the tower of pictures.
_COMPUTING = tuple(f"tiny_llm_lab.runtime.{name}" for name in ("native", "models", "pictures"))


def fingerprint(checkpoint: Checkpoint, model: PagedModel, package: str, notes: Path) -> bytes:
    """32 bytes, different for other weights, another configuration, other code of `package`, another device.

    Weight files are read as a whole once; the folder `notes` keeps their digests, which are good as long as
    size, inode and times of a file are.
    """
    digest = hashlib.sha256()
    # Another rounding is another number, so whatever computes belongs to it.
    device = (mx.default_device(), mx.device_info()["device_name"], kernels_mode(), selected_isa().name)
    ours = (checkpoint.config, checkpoint.dtype, type(model).__qualname__, type(model.ops).__qualname__)
    digest.update(
        repr((device, ours, importlib.metadata.version("mlx"), platform.machine(), sys.byteorder)).encode()
    )
    for name in (package, *_COMPUTING):
        for path, text in _code_in(files(name), name):
            digest.update(path.encode() + hashlib.sha256(text).digest())
    for file in weight_files(checkpoint.path):
        digest.update(_digest_of(file, notes))
    # The files may have changed since they were read.
    for name in sorted(checkpoint.weights):
        digest.update(name.encode() + _beginning(checkpoint.weights[name]))
    return digest.digest()


def _code_in(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for each in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if each.is_dir():
            yield from _code_in(each, f"{name}/{each.name}")
        elif each.name.endswith(_CODE):
            yield f"{name}/{each.name}", each.read_bytes()


def _digest_of(file: Path, notes: Path) -> bytes:
    """The SHA-256 of a file's bytes, computed again only if its size, inode or times are new."""
    result = file.stat()
    known: list[str | int] = [
        str(file.resolve()),
        result.st_size,
        result.st_ino,
        result.st_mtime_ns,
        result.st_ctime_ns,
    ]
    note = notes / hashlib.sha256(repr(known).encode()).hexdigest()
    text = note.read_text(errors="replace") if note.exists() else ""
    digest, _, check = text.partition(" ")
    if check != _check(digest, known):
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        with contextlib.suppress(OSError):  # then the next process reads the file again
            scratch = note.with_suffix(f".{os.getpid()}")
            scratch.write_text(f"{digest} {_check(digest, known)}")
            scratch.replace(note)
    return bytes.fromhex(digest)


def _check(digest: str, known: list[str | int]) -> str:
    return hashlib.sha256(json.dumps([digest, *known]).encode()).hexdigest()


def _beginning(weight: Weight) -> bytes:
    part, bits = (weight, 16) if isinstance(weight, mx.array) else (weight.weight, weight.activation_bits)
    sample = part.reshape(-1)[:16].view(mx.uint8)
    return repr((part.shape, part.dtype, sample.tolist(), bits)).encode()


def prefix_disk(loaded: Loaded, settings: EngineSettings) -> NoPrefixDisk:
    """What --prefix-cache-dir asks for. Raises UserError if we can't write there."""
    if settings.prefix_cache_dir is None:
        return NoPrefixDisk()
    path = Path(settings.prefix_cache_dir).expanduser()
    folder = Folder(path, parse_size(settings.prefix_cache_disk))
    package = str(getattr(loaded.solution, "__name__", type(loaded.solution).__qualname__))
    model = cast(PagedModel, loaded.model)
    root = fingerprint(loaded.checkpoint, model, package, path)
    if settings.speculate not in ("off", "ngram"):  # blocks have the draft model's part too
        root = hashlib.sha256(root + settings.speculate.encode()).digest()
    return PrefixDisk(folder, root)
