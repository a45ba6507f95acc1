"""JSON files of a checkpoint, and single values of a `config.json`, checked; null counts as missing."""

import json
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

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


# The longest name every matrix of a model with numbered experts: about 30,000 names of 100 bytes.
_LARGEST: Final = 4 << 20


def read_json(path: Path, max_bytes: int = _LARGEST) -> "Fields":
    """The object in a JSON file of at most `max_bytes`; anything else is a UserError."""
    if require_file(path, "missing: name a folder with a complete checkpoint") > max_bytes:
        raise UserError(f"{path}: larger than {max_bytes} bytes: {FILE_AGAIN}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot read it ({one_line(error)}): {FILE_AGAIN}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a JSON object: {FILE_AGAIN}")
    return Fields(path, content)


def one_line(error: BaseException) -> str:
    """The message of an exception, short enough for our one line."""
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else text[:157] + "..."


FILE_AGAIN = "fetch the file again"
LARGEST: Final = 2**31 - 1  # of a count; no model has a size above it
# Each layer and each expert has tensors with names.
_MOST: Final = {"num_hidden_layers": 10_000, "num_experts": 10_000}
_LARGEST_NUMBER: Final = 1e30  # so that float32 holds it and its reciprocal
_LEAST: Final = {"factor": 1, "rope_theta": 2}  # yarn divides by the logarithm of the second


class Fields(dict[str, Any]):
    """An object of the JSON file at `path`, whose values are read by name and checked."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.path = path

    def refused(self, message: str, cure: str = FILE_AGAIN) -> UserError:
        """To be raised for what the file says."""
        return UserError(f"{self.path}: {message}: {cure}")

    def count(self, name: str, default: object = None) -> int:
        """The whole number above 0 under `name`; UserError for anything else."""
        value, most = self._given(name, default), _MOST.get(name, LARGEST)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.refused(f"{name} must be a whole number above 0, not {value!r}")
        if value > most:
            raise self.refused(f"{name} must be at most {most}, not {value}")
        return value

    def number(self, name: str, default: object = None) -> float:
        """The number above 0 under `name` that is in its range; UserError for anything else."""
        value = self._given(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise self.refused(f"{name} must be a number above 0, not {value!r}")
        if value < (least := _LEAST.get(name, 1e-30)):
            raise self.refused(f"{name} must be {least} or more, not {value}")
        if value > _LARGEST_NUMBER:
            raise self.refused(f"{name} must be at most {_LARGEST_NUMBER}, not {value}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false under `name`; UserError for anything else."""
        value = self._given(name, default)
        if not isinstance(value, bool):
            raise self.refused(f"{name} must be true or false, not {value!r}")
        return value

    def inner(self, name: str) -> "Fields":
        """The object under `name`, empty when missing; UserError for anything else."""
        value = self._given(name, {})
        if not isinstance(value, dict):
            raise self.refused(f"{name} must be an object or null")
        return Fields(self.path, value)

    def list_of(self, kind: type, name: str) -> list[Any]:
        """The list of `kind` under `name`, empty when missing; UserError for anything else."""
        value = self._given(name, [])
        if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
            what = {int: "numbers", str: "strings"}[kind]
            raise self.refused(f"{name} must be a list of {what}")
        return value

    def ids(self, name: str, vocab_size: int) -> list[int]:
        """The token ids under `name`, one or a list, empty when missing; UserError for anything else."""
        value = self._given(name, [])
        ids: list[Any] = value if isinstance(value, list) else [value]
        if not all(type(each) is int and 0 <= each < vocab_size for each in ids):
            raise self.refused(f"{name} must be token ids below {vocab_size}, not {value!r}")
        return ids

    def agreed(self, name: str, values: Sequence[object]) -> "Fields":
        """The one value among `values`, which all stand for `name`, under it; UserError if two differ."""
        stated = [value for value in values if value is not None]
        if any(value != stated[0] for value in stated):
            raise self.refused(f"{name} has two values, {stated[0]!r} and {stated[-1]!r}")
        return Fields(self.path, {name: stated[0]} if stated else {})

    def _given(self, name: str, default: object) -> object:
        value = self.get(name)
        return default if value is None else value
