"""One file of a checkpoint, before it is opened: what keeps it from being read, and the cure."""

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tiny_llm_lab.types import UserError

AGAIN: Final = "fetch the whole checkpoint again"
# Other files may hold adapters, or the same tensors once more (consolidated.safetensors).
WEIGHTS: Final = "model*.safetensors"
# What loading needs; a repository may also hold pickles, ONNX and pictures. With the patterns of mlx-lm,
# so that either finds complete what the other has downloaded.
PATTERNS: Final = ["*.json", WEIGHTS, "*.jinja", "*.txt", "tokenizer.model"]


def require_file(path: Path, absent: str = f"not there: {AGAIN}") -> int:
    """The size in bytes of the regular file `path` that may be read; UserError with the cure otherwise.

    `absent` is what to say where there is no file of this name.
    """
    with _told(path, absent):
        found = path.stat()
        # Before it is opened: a pipe would wait for its writer, and a device may never end.
        if not stat.S_ISREG(found.st_mode):
            raise UserError(f"{path}: is not a regular file: {AGAIN}")
        path.open("rb").close()
    return found.st_size


def require_files(folder: Path) -> None:
    """`require_file` for everything in `folder` that loading may read."""
    with _told(folder, f"not there: {AGAIN}"):
        files = sorted(path for path in folder.iterdir() if any(map(path.match, PATTERNS)))
    for file in files:
        require_file(file)


@contextmanager
def _told(path: Path, absent: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        if path.is_symlink():  # the hub's cache has links to files that the download makes
            absent = f"is a link to a file that is not there, as its download did not finish: {AGAIN}"
        raise UserError(f"{path}: {absent}") from None
    except PermissionError:
        raise UserError(f"{path}: no permission to read it: use chmod, or run as its owner") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be opened ({error.strerror}): {AGAIN}") from None
