"""Checks a file of a checkpoint before it is opened: why we can't read it, and the cure."""

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tiny_llm_lab.types import UserError

AGAIN: Final = "fetch the whole checkpoint again"
# Other files may hold adapters, or the same tensors once more (consolidated.safetensors).
WEIGHTS: Final = "model*.safetensors"
# What loading needs; a repository may also have pickles, ONNX and pictures. These are mlx-lm's patterns,
# so that each of us finds the other's downloads complete.
PATTERNS: Final = ["*.json", WEIGHTS, "*.jinja", "*.txt", "tokenizer.model"]


def require_file(path: Path, absent: str = f"missing: {AGAIN}") -> int:
    """The size in bytes of the regular file `path` that may be read; UserError with the cure otherwise.

    `absent` is what to say if the file does not exist.
    """
    with _told(path, absent):
        result = path.stat()
        # We check before opening, because a pipe would wait for its writer and a device may never end.
        if not stat.S_ISREG(result.st_mode):
            raise UserError(f"{path}: not a regular file: {AGAIN}")
        path.open("rb").close()
    return result.st_size


def require_files(folder: Path) -> None:
    """`require_file` for everything in `folder` that loading may read."""
    with _told(folder, f"missing: {AGAIN}"):
        files = sorted(path for path in folder.iterdir() if any(map(path.match, PATTERNS)))
    for file in files:
        require_file(file)


@contextmanager
def _told(path: Path, absent: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        if path.is_symlink():  # the hub's cache has links to files that a download creates
            absent = f"it links to a missing file, because its download did not finish: {AGAIN}"
        raise UserError(f"{path}: {absent}") from None
    except PermissionError:
        raise UserError(f"{path}: you may not read it: use chmod, or run as its owner") from None
    except OSError as error:
        raise UserError(f"{path}: cannot open it ({error.strerror}): {AGAIN}") from None
