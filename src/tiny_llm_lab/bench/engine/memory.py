"""`memory`: what a long prefill holds at its peak, and what its chunks read again."""

import time
from typing import Final

import mlx.core as mx

from tiny_llm_lab import native
from tiny_llm_lab.bench.report import Column, Row, Samples, Section
from tiny_llm_lab.steps.runner import StepRunner
from tiny_llm_lab.steps.shapes import chunk

from .config import BenchConfig, free_memory

_CHUNKS: Final = (128, 512, 2048)
# The most bytes of scores that a chunk may make where attention is not computed in tiles.
_MOST_SCORES: Final = 4e9
COLUMNS: Final = (
    Column("steps", "steps", ".0f"),
    Column("peak_bytes", "peak MB", ".1f", 1e-6),
    Column("above_held_bytes", "above held", ".1f", 1e-6),
    Column("reread_tokens", "KV re-read", ",.0f"),
    Column("seconds", "seconds", ".2f"),
)


def chunk_starts(length: int, size: int) -> list[int]:
    """Tokens before each chunk of a prompt that is cut every `size` tokens."""
    return list(range(0, length, size))


def memory(config: BenchConfig) -> Section:
    """The same prompt in chunks of several sizes and in one piece, each with a fresh peak."""
    length = min(config.memory_tokens, config.limit)
    sizes = [*(size for size in _CHUNKS if size < length), length]
    sizes = [size for size in sizes if scores_bytes(config, size, length) <= _MOST_SCORES]
    with config.runner([chunk(0, length)]) as runner:
        runner.run(chunk(0, min(length, _CHUNKS[0])))
        rows = [_measured(runner, length, size) for size in sizes]
        pool_bytes = runner.cache.nbytes
    return Section(
        "memory",
        f"memory: prefill of a prompt of {length} tokens",
        COLUMNS,
        rows,
        notes=[
            f"Held: the weights and {pool_bytes / 1e6:.1f} MB of blocks for the prompt. Re-read: stored "
            "tokens that later chunks read again, the sum of the chunks' starts; in one piece none."
        ],
        data={"tokens": length, "pool_bytes": pool_bytes},
    )


def scores_bytes(config: BenchConfig, size: int, length: int) -> float:
    """Bytes of a chunk's whole matrix of scores, in float32; none where kernels compute it in tiles."""
    if native.kernels(config.llm.__name__):
        return 0.0
    return 4.0 * config.model.config.num_attention_heads * size * length


def _measured(runner: StepRunner, length: int, size: int) -> Row:
    held_bytes, starts = free_memory(), chunk_starts(length, size)
    start_s = time.perf_counter()
    for start in starts:
        runner.run(chunk(start, min(size, length - start)))
    mx.synchronize()
    seconds, peak_bytes = time.perf_counter() - start_s, mx.get_peak_memory()
    return row(length, size, held_bytes, peak_bytes, seconds)


def row(length: int, size: int, held_bytes: float, peak_bytes: float, seconds: float) -> Row:
    """Peaks above what is held all the time, the weights and the pool of blocks."""
    starts = chunk_starts(length, size)
    samples: dict[str, Samples] = {
        "steps": [len(starts)],
        "peak_bytes": [peak_bytes],
        "above_held_bytes": [peak_bytes - held_bytes],
        "reread_tokens": [sum(starts)],
        "seconds": [seconds],
    }
    return Row(f"{size}" + (" (one piece)" if size == length else ""), samples)
