"""What a chunk behind a long prompt takes in memory: on plain arrays, on the `mlx` set, and in mlx-lm."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx

from benchmarks.measurements.launches import fused
from benchmarks.measurements.reference import model_on
from benchmarks.measurements.show import show
from tiny_llm_lab.measure.bench.report import Column, Row, Section
from tiny_llm_lab.measure.bench.sample import free_memory
from tiny_llm_lab.runtime.baselines.mlx_lm_model import build_model
from tiny_llm_lab.runtime.models import load_checkpoint
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.types import Checkpoint, Wanted

NAMES: Final = ("off", "mlx", "mlx-lm")
_MODEL: Final = "random:qwen3-0.6b,layers=2,vocab=2048"
_STORED, _NEW = 16_384, 512
_COLUMNS: Final = (
    Column("cache_bytes", "cache, MB", ".0f", 1e-6),
    Column("peak_bytes", "peak, MB", ".0f", 1e-6),
    Column("fused_peak_bytes", "peak, fused", ".0f", 1e-6),
    Column("grown_bytes", "grown cache", ".0f", 1e-6),
    Column("grown_peak_bytes", "peak, fused", ".0f", 1e-6),
)
_NOTES: Final = (
    "peak: beyond weights and cache, while the chunk is computed. On a CPU MLX writes",
    "the scores of its attention out, here and in mlx-lm; fused: without them, as on",
    "a GPU. grown cache: one that has no room for the chunk. Ours doubles, and keeps",
    "room for as much again; mlx-lm's grows by 256 tokens, and is copied each time.",
)


@dataclass(frozen=True)
class Memory:
    """Bytes of all caches behind a chunk, and the most that was held besides weights and what they were."""

    cache_bytes: int
    peak_bytes: int


def memory_sections() -> Iterator[Section]:
    """The one table."""
    checkpoint = load_checkpoint(_MODEL, dtype="float32")
    rows = []
    for name in NAMES:
        here, roomy, grown = (
            memory_of(name, checkpoint, _STORED, _NEW, room, is_fused)
            for room, is_fused in ((_NEW, False), (_NEW, True), (0, True))
        )
        figures = (here.cache_bytes, here.peak_bytes, roomy.peak_bytes, grown.cache_bytes, grown.peak_bytes)
        rows.append(Row(name, {column.key: [n] for column, n in zip(_COLUMNS, figures, strict=True)}))
    title = f"memory of a chunk of {_NEW} behind {_STORED} tokens, {_MODEL}, float32"
    yield Section("memory", title, _COLUMNS, rows, notes=_NOTES)


def memory_of(name: str, checkpoint: Checkpoint, stored: int, new: int, room: int, is_fused: bool) -> Memory:
    """A chunk of `new` tokens behind `stored` of one request, whose cache has had `room` tokens more.

    `name` is "off", "mlx" or "mlx-lm". `is_fused`: MLX's fused operators take no memory but their results,
    as on a GPU.
    """
    model, config = _built(name, checkpoint), checkpoint.config
    shape = (1, config.num_key_value_heads, stored + room, config.head_dim)
    caches = model.create_kv_cache()
    for i, cache in enumerate(caches):
        cache.update_and_fetch(*(mx.random.normal(shape, key=mx.random.key(2 * i + n)) for n in (0, 1)))
        cache.materialize()
        cache.rewind(room)
    tokens = mx.zeros((1, new), mx.int32)
    mx.eval(tokens, [w for w in checkpoint.weights.values() if isinstance(w, mx.array)])
    before = free_memory()
    with fused() if is_fused else nullcontext():
        logits = model(tokens, stored, caches, wanted=Wanted(last=1))
    mx.eval(logits, [(cache.keys, cache.values) for cache in caches])
    peak = mx.get_peak_memory() - before
    return Memory(sum(cache.keys.nbytes + cache.values.nbytes for cache in caches), peak)


def _built(name: str, checkpoint: Checkpoint) -> Any:
    if name == "mlx-lm":
        return build_model(checkpoint)
    ops = MlxOps(widens=False) if name == "mlx" else None
    return model_on(checkpoint.config, checkpoint.weights, ops)


if __name__ == "__main__":
    show("memory", memory_sections())
