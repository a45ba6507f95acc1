"""The safetensors files of a checkpoint folder: which they are, and which tensors they hold."""

from pathlib import Path
from typing import Final

from tiny_llm_lab.runtime.models.config.checkpoint_file import AGAIN, WEIGHTS, require_file
from tiny_llm_lab.runtime.models.config.model_config import read_json
from tiny_llm_lab.runtime.models.weights.safetensors_file import TensorInfo, read_header
from tiny_llm_lab.types import UserError

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
