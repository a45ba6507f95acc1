"""The numbers of a packed checkpoint in the formats of other engines."""

import json
import shutil
from pathlib import Path
from typing import Final

import mlx.core as mx
import numpy as np

from benchmarks.measurements.activation_error.figures import Array
from benchmarks.peers.gguf_file import gguf_writer
from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.types import QuantizedWeights

_BLOCK: Final = 32  # numbers that share a scale in Q4_0


def write_dense(packed: Path, folder: Path) -> None:
    """Write the decoded weights in bfloat16, for transformers, into the new `folder`."""
    shutil.copytree(packed, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((packed / "config.json").read_text(encoding="utf-8"))
    for key in ("quantization", "quantization_config"):
        del config[key]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = load_checkpoint(packed, dtype="bfloat16").weights
    decoded = {k: w.dequantized() if isinstance(w, QuantizedWeights) else w for k, w in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), decoded, {"format": "pt"})


def write_q4_0(packed: Path, path: Path) -> None:
    """Write a GGUF file. Each scale must be a float16, and -1/8 of its bias."""
    checkpoint = load_checkpoint(packed, dtype="float32")
    with gguf_writer(path, checkpoint.config, "Q4_0") as add:
        for name, w in checkpoint.weights.items():
            add(name, q4_0(w) if isinstance(w, QuantizedWeights) else np.array(w))


def q4_0(w: QuantizedWeights) -> Array:
    """Bytes [O, I / 32 * 18]: of each 32 numbers the scale in float16, then number i beside number i + 16."""
    packed, scales = np.array(w.weight).view(np.uint8), np.array(w.scales)
    rows = len(packed)
    integers = np.stack([packed & 15, packed >> 4], -1).reshape(rows, -1, 2, _BLOCK // 2)
    numbers = integers[:, :, 0] | integers[:, :, 1] << 4
    d = scales.astype(np.float16)
    assert (
        w.biases is not None and np.array_equal(d, scales) and np.array_equal(-8 * scales, np.array(w.biases))
    )
    d_bytes = d.repeat(w.group_size // _BLOCK, 1)[..., None].view(np.uint8)
    return np.concatenate([d_bytes, numbers], -1).reshape(rows, -1)
