"""The memory that a long prompt of a hybrid takes, in chunks and whole.

The sizes are those of a Qwen3.5 of 0.8B, with four of its layers.
"""

from typing import Any, Final

import mlx.core as mx

from benchmarks.measurements.show import show
from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.measure.bench.report import Column, Row, Section
from tiny_llm_lab.measure.bench.sample import free_memory
from tiny_llm_lab.types import Wanted

_MODEL: Final = "random:qwen3.5-0.8b,layers=4,vocab=2048,bits=4"
_LENGTH, _CHUNKS = 32_768, (512, 2048, 32_768)
_COLUMNS: Final = (
    Column("peak_bytes", "peak, MB", ".0f", 1e-6),
    Column("kept_bytes", "kept, MB", ".0f", 1e-6),
)
_NOTE: Final = "beyond the weights: the most while the prompt is computed; keys, values and states after it"


def main() -> None:
    model = load_solution("ref").build_model(load_checkpoint(_MODEL))
    _forward(model, 64, 64)  # what the first call allocates once
    rows = []
    for chunk in _CHUNKS:
        before = free_memory()
        kept = _forward(model, _LENGTH, chunk)
        peak = mx.get_peak_memory() - before
        rows.append(Row(f"chunks of {chunk:,}", {"peak_bytes": [peak], "kept_bytes": [kept]}))
    title = f"a prompt of {_LENGTH:,} tokens, {_MODEL}"
    show("hybrid-memory", [Section("hybrid-memory", title, _COLUMNS, rows, notes=(_NOTE,))])


def _forward(model: Any, length: int, chunk: int) -> int:
    """Compute a prompt; the bytes of its caches afterwards."""
    caches = model.create_kv_cache()
    for start in range(0, length, chunk):
        tokens = mx.arange(start, min(start + chunk, length))[None] % 2000
        is_last = start + chunk >= length
        mx.eval(model(tokens, start, caches, wanted=Wanted(last=int(is_last))))
        for cache in caches:
            cache.materialize()
    return sum(part.nbytes for cache in caches for part in cache.fetch())


if __name__ == "__main__":
    main()
