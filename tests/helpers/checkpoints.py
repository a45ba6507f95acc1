"""Checkpoint folders for tests: shrunk models with random weights, and ways to change a copy."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.runtime.models.registry import find_folder
from tiny_llm_lab.types import UserError

# Both families, each with the head shared with the embedding and with one of its own; float32.
SHRUNK = (
    "random:qwen3-shrunk",
    "random:qwen3-shrunk,tied=0",
    "random:qwen2.5-shrunk",
    "random:qwen2.5-shrunk,tied=1",
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


def edit_tensors(folder: Path, **changes: mx.array | None) -> None:
    """Set tensors, with two underscores for each dot of the name; None removes one."""
    tensors: dict[str, Any] = tensors_of(folder)
    tensors |= {name.replace("__", "."): tensor for name, tensor in changes.items()}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    mx.save_safetensors(str(folder / "model.safetensors"), kept, {"format": "mlx"})


def split_into_shards(folder: Path, num_shards: int = 3) -> None:
    """Rewrite the weights as several files with an index, as large checkpoints come."""
    tensors = tensors_of(folder)
    names = [f"model-{i + 1:05}-of-{num_shards:05}.safetensors" for i in range(num_shards)]
    weight_map = {tensor: names[i % num_shards] for i, tensor in enumerate(tensors)}
    for name in names:
        part = {tensor: tensors[tensor] for tensor, file in weight_map.items() if file == name}
        mx.save_safetensors(str(folder / name), part, {"format": "mlx"})
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
