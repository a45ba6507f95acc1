"""The peak memory of a prefill in chunks of several sizes."""

import time
from collections.abc import Sequence
from typing import Final

import mlx.core as mx

from tiny_llm_lab.measure.bench.report import Column, Row, Samples
from tiny_llm_lab.measure.bench.sample import free_memory
from tiny_llm_lab.runtime.steps.runner import StepRunner, chunk

MEMORY_COLUMNS: Final = (
    Column("steps", "steps", ".0f"),
    Column("peak_bytes", "peak MB", ".1f", 1e-6),
    Column("above_held_bytes", "above held", ".1f", 1e-6),
    Column("reread_tokens", "KV re-read", ",.0f"),
    Column("seconds", "seconds", ".2f"),
)


def memory_rows(runner: StepRunner, length: int, sizes: Sequence[int]) -> tuple[list[Row], int]:
    """A row for each size of chunk, after a warm-up; and the bytes of the blocks."""
    runner.run(chunk(0, sizes[0]))
    return [_memory_row(runner, length, size) for size in sizes], runner.cache.nbytes


def _memory_row(runner: StepRunner, length: int, size: int) -> Row:
    """A prompt in chunks of `size`, and its peak memory above the weights and the blocks."""
    held_bytes, starts = free_memory(), range(0, length, size)
    start_s = time.perf_counter()
    for start in starts:
        runner.run(chunk(start, min(size, length - start)))
    mx.synchronize()
    peak_bytes = mx.get_peak_memory()
    samples: dict[str, Samples] = {
        "steps": [len(starts)],
        "peak_bytes": [peak_bytes],
        "above_held_bytes": [peak_bytes - held_bytes],
        "reread_tokens": [sum(starts)],
        "seconds": [time.perf_counter() - start_s],
    }
    return Row(f"{size}" + (" (one piece)" if size == length else ""), samples)
