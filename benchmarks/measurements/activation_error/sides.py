"""Logits of one engine, in a process of its own: `python -m` with the name of this module.

Ours may round activations to 8 bits in groups by arrays: what any size of group costs, whatever a kernel has.
"""

import ctypes
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np

from benchmarks.measurements.activation_error.figures import Array
from benchmarks.measurements.reference import model_on
from benchmarks.peers.gguf_file import BLOCK, gguf_writer
from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.baselines.mlx_lm_model import build_model
from tiny_llm_lab.runtime.models.weights.activation_bits import with_activation_bits
from tiny_llm_lab.runtime.native.cpp_ops import UnevenCppOps
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.types import Checkpoint, Model, QuantizedWeights, Weight
from tiny_llm_lab.types.packages import PACKAGES


def rounded(x: mx.array, group: int) -> mx.array:
    """x [..., I] in float32, each `group` of I as integers from -127 to 127 times its largest / 127."""
    groups = mx.unflatten(x.astype(mx.float32), -1, (-1, group))
    scale = mx.max(mx.abs(groups), axis=-1, keepdims=True) / 127
    # As the kernels do: half of the largest, 63.5, then goes where they put it.
    inverse = mx.where(scale == 0, 0, 1 / mx.where(scale == 0, 1, scale))
    return mx.flatten(mx.round(groups * inverse) * scale, -2)


class ChangedOps(UnevenCppOps):
    """The C++ kernels; before a product with packed weights `change` makes its activations others."""

    def __init__(self, change: Callable[[mx.array], mx.array]) -> None:
        """`change` takes activations [..., I], and returns as many in any dtype."""
        super().__init__(native.load(PACKAGES["ref"]), MlxOps(widens=True))
        self._change = change

    def linear(
        self, x: mx.array, weights: Sequence[Weight], biases: Sequence[mx.array | None] = ()
    ) -> list[mx.array]:
        """See `KernelOps.linear`."""
        if not all(isinstance(w, QuantizedWeights) for w in weights):
            return super().linear(x, weights, biases)
        return [out.astype(x.dtype) for out in super().linear(self._change(x), weights, biases)]


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
    integers = np.stack([packed & 15, packed >> 4], -1).reshape(rows, -1, 2, BLOCK // 2)
    numbers = integers[:, :, 0] | integers[:, :, 1] << 4
    d = scales.astype(np.float16)
    assert (
        w.biases is not None and np.array_equal(d, scales) and np.array_equal(-8 * scales, np.array(w.biases))
    )
    d_bytes = d.repeat(w.group_size // BLOCK, 1)[..., None].view(np.uint8)
    return np.concatenate([d_bytes, numbers], -1).reshape(rows, -1)


@dataclass(frozen=True)
class Side:
    """How our model, or mlx-lm's, computes."""

    dtype: str = "bfloat16"
    group: int = 0  # of the activations that arrays round to 8 bits; 0: none
    bits: int = 16  # of the activations in the kernels
    engine: str = "ref"


EXACT: Final = "float32"
OWN: Final[dict[str, Side]] = {
    EXACT: Side("float32"),
    "bfloat16": Side(),
    **{f"8 bits in {group}": Side(group=group) for group in (16, 32, 64)},
    "8 bits in 32, the kernels": Side(bits=8),
    "8 bits in 32, else float32": Side("float32", 32),
}
MLX_LM: Final = {"mlx-lm, bfloat16": Side(engine="mlx-lm")}
LLAMA: Final = "llama.cpp, Q4_0"


def built(side: Side, checkpoint: Checkpoint) -> Model:
    """The model of a checkpoint that was loaded with the dtype of `side`."""
    if side.engine == "mlx-lm":
        return build_model(checkpoint)
    if side.group:
        return built_on(checkpoint, partial(rounded, group=side.group))
    checkpoint = replace(checkpoint, weights=with_activation_bits(checkpoint.weights, side.bits))
    return load_solution("ref").build_model(checkpoint)


def built_on(checkpoint: Checkpoint, change: Callable[[mx.array], mx.array]) -> Any:
    """Our model on `ChangedOps`."""
    return model_on(checkpoint.config, checkpoint.weights, ChangedOps(change))


def logits_of(name: str, packed: Path, tokens: Array) -> Array:
    """Logits [B * L, V] of tokens [B, L]."""
    if name == LLAMA:
        return _of_llama(packed, tokens)
    side = (OWN | MLX_LM)[name]
    model = built(side, load_checkpoint(packed, dtype=side.dtype))
    rows = [np.array(model(mx.array(row[None]))[0].astype(mx.float32)) for row in tokens]
    return np.concatenate(rows)


def _of_llama(packed: Path, tokens: Array) -> Array:
    import llama_cpp

    path = packed.with_name("q4_0.gguf")
    write_q4_0(packed, path)
    silence = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silence, ctypes.c_void_p(0))
    rows, length = [], tokens.shape[1]
    model = llama_cpp.Llama(str(path), n_ctx=256, logits_all=True, n_threads=2, verbose=False)
    for row in tokens:
        model.reset()
        model.eval(row.tolist())
        rows.append(np.array(model.scores[:length]))
    model.close()
    return np.concatenate(rows)


if __name__ == "__main__":
    name, folder, tokens, out = sys.argv[1:]
    np.save(out, logits_of(name, Path(folder), np.load(tokens)))
