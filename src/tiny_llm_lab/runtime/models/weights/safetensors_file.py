"""Safetensors files: their headers, checked before MLX reads the data, and a writer that streams.

Layout: 8 bytes little-endian header length, the header as JSON, then the tensors' bytes.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from tiny_llm_lab.runtime.models.config.fields import AGAIN, WEIGHTS, one_line, read_json, require_file
from tiny_llm_lab.types import UserError

ITEM_SIZES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
_LENGTH_BYTES = 8
_PIECE_BYTES = 1 << 22
# Of 512 experts a layer under names of their own a model of 80 layers has 120,000 tensors.
_MOST_TENSORS = 200_000
_LONGEST_HEADER = 400 * _MOST_TENSORS


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as a header describes it."""

    path: Path
    name: str  # in the file
    dtype: str  # as safetensors spells it: F32, BF16, U32, ...
    shape: tuple[int, ...]
    begin: int  # where in the file its bytes begin
    num_bytes: int
    format: str | None = None  # what the file says of its writer: pt, mlx, ...


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Every tensor of the file at `path`; UserError when it is damaged or shorter than it says.

    MLX would find most of this too, but only while it loads, file by file, with other messages.
    """
    size = require_file(path)
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if size < _LENGTH_BYTES or length > min(size - _LENGTH_BYTES, _LONGEST_HEADER):
                raise _damaged(path, "its header is longer than the file")
            text = file.read(length)
            if text.count(b"{") > _MOST_TENSORS:  # counted first: to parse a million takes seconds
                raise _damaged(path, f"its header has more than {_MOST_TENSORS} tensors")
            header = json.loads(text)
    except UserError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, one_line(error)) from None
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not a JSON object")
    about = header.pop("__metadata__", None)
    kind = about.get("format") if isinstance(about, dict) else None
    data = _LENGTH_BYTES + length
    tensors = {name: _tensor_info(path, data, name, fields, kind) for name, fields in header.items()}
    spans = sorted((info.begin, info.begin + info.num_bytes) for info in tensors.values())
    missing = max((end for _, end in spans), default=0) - size
    if missing > 0:
        raise _damaged(path, f"its last {missing} bytes are missing")
    if any(end > begin for (_, end), (begin, _) in pairwise(spans)):
        raise _damaged(path, "two tensors share bytes")
    return tensors


def _tensor_info(path: Path, data: int, name: str, fields: Any, kind: object) -> TensorInfo:
    """The tensor behind a header that ends at `data`, if the header's entry holds together.

    `kind` is the format that the file states.
    """
    try:
        dtype, shape = fields["dtype"], tuple(fields["shape"])
        begin, end = fields["data_offsets"]
        are_counts = all(isinstance(n, int) and n >= 0 for n in (*shape, begin, end))
        if are_counts and end - begin == math.prod(shape) * ITEM_SIZES[dtype]:
            stated = kind if isinstance(kind, str) else None
            return TensorInfo(path, name, dtype, shape, data + begin, end - begin, stated)
    except (KeyError, TypeError, ValueError):
        pass
    raise _damaged(path, f"the header's entry for {name} is invalid")


def hold_the_same(a: TensorInfo, b: TensorInfo) -> bool:
    """Whether two tensors have the same dtype, shape and bytes; reads both a piece at a time."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    with a.path.open("rb") as first, b.path.open("rb") as second:
        first.seek(a.begin)
        second.seek(b.begin)
        for begin in range(0, a.num_bytes, _PIECE_BYTES):
            size = min(_PIECE_BYTES, a.num_bytes - begin)
            if first.read(size) != second.read(size):
                return False
    return True


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"{path}: damaged or cut short ({what}): fetch the file again")


def write_safetensors(
    path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]], pieces: Iterable[np.ndarray[Any, Any]]
) -> None:
    """Write `tensors` (name -> dtype, shape), whose data `pieces` yields in order, in chunks of any size.

    Holds one piece at a time: mx.save_safetensors would need the whole model in memory.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + math.prod(shape) * ITEM_SIZES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)  # the data begins aligned
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(_LENGTH_BYTES, "little") + encoded)
        for piece in pieces:
            piece.tofile(file)
        if file.tell() != _LENGTH_BYTES + len(encoded) + end:
            raise ValueError(f"{path}: the pieces do not fill the tensors")


INDEX_FILE = "model.safetensors.index.json"
# The index of a model with 100,000 tensors has 10 MB.
_LARGEST_INDEX: Final = 64 << 20


def find_tensors(folder: Path) -> dict[str, TensorInfo]:
    """Every tensor of the folder's weight files, from checked headers; UserError for one in two files."""
    tensors: dict[str, TensorInfo] = {}
    for file in weight_files(folder):
        for name, info in read_header(file).items():
            if name in tensors:
                other = tensors[name].path.name
                raise UserError(f"{file}: tensor {name} is also in {other}: remove the wrong file")
            tensors[name] = info
    return tensors


def weight_files(folder: Path) -> list[Path]:
    """The files that the folder's index names; without an index its `model*.safetensors`; at least one."""
    index = folder / INDEX_FILE
    files = _shards(index) if index.exists() else sorted(folder.glob(WEIGHTS))
    if not files:
        has_others = any(folder.glob("*.safetensors"))
        cure = "rename its weight file" if has_others else AGAIN
        raise UserError(f"{folder}: it has no {WEIGHTS} file: {cure}")
    return files


def _shards(index: Path) -> list[Path]:
    weight_map = read_json(index, _LARGEST_INDEX).get("weight_map")
    names = list(weight_map.values()) if isinstance(weight_map, dict) else []
    # No file has a name of more than 255 bytes.
    if not names or not all(isinstance(name, str) and Path(name).name == name[:255] for name in names):
        raise UserError(f"{index}: it has no weight_map of file names: fetch the file again")
    files = [index.parent / name for name in sorted(set(names))]
    for file in files:
        require_file(file, f"missing, but named in {INDEX_FILE}: {AGAIN}")
    return files
