"""Logits of one engine, in a process of its own: `python -m recipes.measurements.activation_error.sides`."""

import ctypes
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np
from recipes.measurements.activation_error.figures import Array
from recipes.measurements.activation_error.formats import write_q4_0
from recipes.measurements.activation_error.rounded import ChangedOps, rounded

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.runtime.baselines.mlx_lm_model import build_model
from tiny_llm_lab.runtime.models.weights.activation_bits import with_activation_bits
from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.types import Checkpoint, Model
from tiny_llm_lab.types.packages import PACKAGES


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
    llm: Any = TaskNames(importlib.import_module(PACKAGES["ref"]))
    return llm.Qwen(checkpoint.config, checkpoint.weights, ChangedOps(change))


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
