"""`memory`: what a long prefill holds at its peak, and what its chunks read again."""

import time
from functools import partial
from typing import Final

import mlx.core as mx

from tiny_llm_lab import native
from tiny_llm_lab.step_runner import StepRunner
from tiny_llm_lab.step_shapes import Step, chunk

from .report import Report
from .setting import Setting, free_memory

_CHUNKS: Final = (128, 512, 2048)
# The most bytes of scores that a chunk may make where attention is not computed in tiles.
_MOST_SCORES: Final = 4e9


def chunk_starts(length: int, size: int) -> list[int]:
    """Tokens before each chunk of a prompt that is cut every `size` tokens."""
    return list(range(0, length, size))


def memory(setting: Setting) -> Report:
    """The same prompt in chunks of several sizes and in one piece, each behind a fresh peak."""
    length = min(setting.memory_tokens, setting.limit)
    sizes = [size for size in _CHUNKS if size < length] + [length]
    sizes = [size for size in sizes if scores_bytes(setting, size, length) <= _MOST_SCORES]
    runner = StepRunner(setting.llm, setting.model, [chunk(0, length)], setting.seed)
    runner.run(chunk(0, min(length, _CHUNKS[0])))
    measured = []
    for size in sizes:
        free_memory()
        held_bytes = mx.get_active_memory()
        seconds = _prefill(partial(runner.run), length, size)
        starts = chunk_starts(length, size)
        measured.append(
            {
                "chunk": size,
                "steps": len(starts),
                "peak_bytes": mx.get_peak_memory(),
                "held_bytes": held_bytes,
                "reread_tokens": sum(starts),
                "seconds": seconds,
            }
        )
    pool_bytes = runner.cache.nbytes
    runner.release()
    return memory_report(measured, length, pool_bytes)


def scores_bytes(setting: Setting, size: int, length: int) -> float:
    """Bytes of a chunk's whole matrix of scores, in float32; none where kernels compute it in tiles."""
    if native.kernels(setting.llm.__name__):
        return 0.0
    return 4.0 * setting.model.config.num_attention_heads * size * length


def memory_report(measured: list[dict[str, float]], length: int, pool_bytes: int) -> Report:
    """Peaks above what is held all the time, the weights and the pool of blocks."""
    rows = [
        (
            f"{each['chunk']:.0f}" + (" (one piece)" if each["chunk"] == length else ""),
            f"{each['steps']:.0f}",
            f"{each['peak_bytes'] / 1e6:.1f}",
            f"{(each['peak_bytes'] - each['held_bytes']) / 1e6:.1f}",
            f"{each['reread_tokens']:,.0f}",
            f"{each['seconds']:.2f}",
        )
        for each in measured
    ]
    return Report(
        "memory",
        f"prefill of a prompt of {length} tokens",
        ("chunk", "steps", "peak MB", "above held", "KV re-read", "seconds"),
        rows,
        notes=[
            f"Held: the weights and {pool_bytes / 1e6:.1f} MB of blocks for the prompt. Re-read: stored "
            "tokens that later chunks read again, the sum of the chunks' starts; in one piece none."
        ],
        data={"tokens": length, "pool_bytes": pool_bytes, "chunks": measured},
    )


def _prefill(run: "partial[list[int]]", length: int, size: int) -> float:
    start_s = time.perf_counter()
    for start in chunk_starts(length, size):
        step: Step = chunk(start, min(size, length - start))
        run(step)
    mx.synchronize()
    return time.perf_counter() - start_s
