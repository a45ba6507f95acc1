"""Checkpoint folders for tests: shrunk models with random weights, and ways to change a copy."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.runtime.models.registry import find_folder
from tiny_llm_lab.types import QuantizedWeights, UserError

# The families, Qwen's each with the head shared with the embedding and with one of its own; float32.
SHRUNK = (
    "random:qwen3-shrunk",
    "random:qwen3-shrunk,tied=0",
    "random:qwen2.5-shrunk",
    "random:qwen2.5-shrunk,tied=1",
    "random:llama-shrunk",
)

Copy = Callable[..., Path]  # the fixture of tests/lab/models
Damage = Callable[[Path], object]


def complaint(name: str | Path, **settings: Any) -> str:
    """The one line that loading `name` ends with."""
    with pytest.raises(UserError) as caught:
        load_checkpoint(str(name), **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def without(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def overwritten(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def copy_of(name: str, folder: Path) -> Path:
    """The checkpoint called `name`, in a folder that the test may change."""
    return Path(shutil.copytree(find_folder(name), folder))


def edit_json(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file; the value ... removes one."""
    content = json.loads(path.read_text()) if path.exists() else {}
    content |= changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def tensors_of(folder: Path, file: str = "model.safetensors") -> dict[str, mx.array]:
    content = mx.load(str(folder / file))
    assert isinstance(content, dict)
    mx.eval(content)  # before the file is written again
    return content


def save_tensors(folder: Path, tensors: Mapping[str, mx.array], file: str = "model.safetensors") -> None:
    mx.save_safetensors(str(folder / file), dict(tensors), {"format": "mlx"})


def edit_tensors(folder: Path, changes: Mapping[str, mx.array | None]) -> None:
    """Set tensors; None removes one."""
    tensors = {**tensors_of(folder), **changes}
    save_tensors(folder, {name: tensor for name, tensor in tensors.items() if tensor is not None})


def arrays_of(name: str | Path) -> dict[str, mx.array]:
    """The arrays of a loaded checkpoint in float32, those of packed weights one by one."""
    found: dict[str, mx.array] = {}
    for weight, w in load_checkpoint(str(name), dtype="float32").weights.items():
        parts = vars(w) if isinstance(w, QuantizedWeights) else {"dense": w}
        found |= {f"{weight} {part}": each for part, each in parts.items() if isinstance(each, mx.array)}
    return found


def differing(*found: str | Path | Mapping[str, mx.array]) -> list[str]:
    """The names of arrays that only one of two has, or that differ; a checkpoint's are loaded."""
    a, b = (each if isinstance(each, Mapping) else arrays_of(each) for each in found)
    both = a.keys() & b.keys()
    return sorted((a.keys() ^ b.keys()) | {name for name in both if not mx.array_equal(a[name], b[name])})


def shard(folder: Path, num_shards: int = 3) -> None:
    """Rewrite the weights as several files with an index, as large checkpoints come."""
    tensors = tensors_of(folder)
    names = [f"model-{i + 1:05}-of-{num_shards:05}.safetensors" for i in range(num_shards)]
    weight_map = {tensor: names[i % num_shards] for i, tensor in enumerate(tensors)}
    for name in names:
        part = {tensor: tensors[tensor] for tensor, file in weight_map.items() if file == name}
        save_tensors(folder, part, name)
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
