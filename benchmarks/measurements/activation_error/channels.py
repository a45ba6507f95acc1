"""How much larger than the others the largest activations are."""

from pathlib import Path
from typing import Final

import mlx.core as mx
import numpy as np

from benchmarks.measurements.activation_error.figures import Array
from benchmarks.measurements.activation_error.sides import built_on
from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.measure.bench.report import Column, Row, Section

_INPUTS: Final = (
    "q, k, v",
    "output projection",
    "gate, up",
    "down",
)  # the products of a layer, in their order
_COLUMNS: Final = (
    Column("rms", "largest / RMS", ".1f"),
    Column("typical", "largest / median", ".1f"),
    Column("typical_32", "same, in its 32", ".1f"),
)


def channel_section(about: str, packed: Path, tokens: Array) -> Section:
    """By product the largest activation of a row next to the others, in the middle of layers and tokens."""
    seen: list[mx.array] = []

    def note(x: mx.array) -> mx.array:
        seen.append(x)
        return x

    model = built_on(load_checkpoint(packed, dtype="float32"), note)
    mx.eval(model(mx.array(tokens)))
    rows = []
    for i, name in enumerate(_INPUTS):
        sizes = np.abs(
            [np.array(x).reshape(-1, x.shape[-1]) for x in seen[i :: len(_INPUTS)][: len(model.layers)]]
        )
        rows.append(Row.of_runs(name, [_ratios(sizes)]))
    rows.append(Row.of_runs("output head", [_ratios(np.abs(np.array(seen[-1])))]))
    return Section("channels", f"activations of {about}", _COLUMNS, rows)


def _ratios(sizes: Array) -> dict[str, float]:
    """Medians over all rows of sizes [..., I]: absolute numbers."""
    largest, groups = sizes.max(-1), sizes.reshape(*sizes.shape[:-1], -1, 32)
    group = np.take_along_axis(groups, sizes.argmax(-1)[..., None, None] // 32, -2)
    return {
        "rms": float(np.median(largest / np.sqrt(np.mean(sizes**2, -1)))),
        "typical": float(np.median(largest / np.median(sizes, -1))),
        "typical_32": float(np.median(largest / np.median(group[..., 0, :], -1))),
    }
