"""How many operators the steps of a model start, beside those of mlx-lm: before, and on the `mlx` set."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache

from benchmarks.measurements.launches import launches, one_attention
from benchmarks.measurements.reference import model_on, reference
from benchmarks.measurements.show import show
from tiny_llm_lab.measure.bench.report import Column, Row, Section
from tiny_llm_lab.runtime.baselines.mlx_lm_model import MlxLmModel, build_model
from tiny_llm_lab.runtime.models import load_checkpoint
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.types import Checkpoint, Slice, Wanted

MODELS: Final = tuple((base, bits) for base in ("qwen2.5", "qwen3") for bits in (16, 4))
OWN_KERNEL: Final = "engine: 8 decodes, own kernel"
_NAMES: Final = ("off", "mlx", "mlx-lm")
_COLUMNS: Final = tuple(
    Column(f"{name} {part}", name if part == "layer" else "rest", ".0f")
    for name in _NAMES
    for part in ("layer", "rest")
)
_NOTES: Final = (
    "off: plain arrays (TINY_LLM_KERNELS=off); mlx: MLX's fused operators; own kernel: one that reads the",
    "blocks of the decodes. Else keys and values are gathered, two launches a layer for all decodes and for",
    "each chunk. mlx-lm has no pages: its figures are of a dense batch, and for a chunk of its own call.",
)
_STORED: Final = (3, 5, 9, 12, 17, 17, 30, 31)  # tokens of each request before the step
_CHUNK_BEHIND, _CHUNK, _BLOCK = 10, 20, 8

Step = Callable[[], Sequence[mx.array]]


class OwnKernel(MlxOps):
    """MLX's operators beside a kernel that reads blocks by itself."""

    def __init__(self, *, widens: bool, reads_hidden: bool) -> None:
        super().__init__(widens, reads_hidden=reads_hidden)
        self.paged_attention = _at_once


def _at_once(query: mx.array, key: mx.array, value: mx.array, *_: Any, **__: Any) -> mx.array:
    return one_attention(query, key, value).transpose(0, 2, 1, 3).flatten(2)


def launch_sections() -> Iterator[Section]:
    """A table for each family and packing."""
    for base, bits in MODELS:
        columns = {name: counted(name, base, bits) for name in _NAMES}
        rows = []
        for step in columns["mlx"]:
            found = {name: columns[name].get(step) for name in _NAMES}
            samples = {
                f"{name} {part}": [] if pair is None else [pair[i]]
                for name, pair in found.items()
                for i, part in enumerate(("layer", "rest"))
            }
            rows.append(Row(step, samples))
        packing = "4-bit" if bits == 4 else "dense"
        title = f"operators that a step of {base}, {packing}, starts in a layer, and else (rest)"
        notes = _NOTES if (base, bits) == MODELS[-1] else ()
        yield Section("launches", title, _COLUMNS, rows, notes=notes, data={"model": base, "bits": bits})


def counted(name: str, base: str, bits: int) -> dict[str, tuple[int, int]]:
    """By step the operators of a layer, and of all else, of the model `name`: "off", "mlx" or "mlx-lm"."""
    one, three = (
        {step: sum(launches(make).values()) for step, make in steps_of(name, checkpoint).items()}
        for checkpoint in (
            load_checkpoint(f"random:{base}-shrunk,bits={bits},layers={n}", dtype="float32") for n in (1, 3)
        )
    )
    return {step: ((three[step] - one[step]) // 2, (3 * one[step] - three[step]) // 2) for step in one}


def steps_of(name: str, checkpoint: Checkpoint) -> dict[str, Step]:
    """What each step computes, as graphs, of the model `name`: "off", "mlx" or "mlx-lm"."""
    if name == "mlx-lm":
        return _of_mlx_lm(build_model(checkpoint))
    parts, llm = (checkpoint.config, checkpoint.weights), reference()
    model = model_on(*parts, None if name == "off" else MlxOps(widens=False, reads_hidden=False))
    decodes, chunk = [(stored, 1) for stored in _STORED], [(_CHUNK_BEHIND, _CHUNK)]

    def batch() -> list[mx.array]:
        rows = [_prefilled(model, stored) for stored in _STORED]
        layers = [llm.BatchingKvCache(len(rows), storage=model.ops) for _ in model.layers]
        for row in rows:
            for layer, part in zip(layers, row, strict=True):
                layer.add_request(part)
        return [model(_tokens(len(rows), 1), list(_STORED), layers)]

    def paged(model: Any, parts: list[tuple[int, int]], rows: list[int]) -> Step:
        def step() -> list[mx.array]:
            cache = model.create_paged_kv_cache(_BLOCK * (len(parts) + 1), _BLOCK)
            slices = [Slice(range(_BLOCK * i, _BLOCK * (i + 1)), *part) for i, part in enumerate(parts)]
            layout = llm.StepLayout.of(_BLOCK, slices)
            num_rows = len(layout.positions)
            layers, wanted = cache.begin_step(layout), Wanted(rows=rows)
            return [model(_tokens(num_rows, 1), layout.positions, layers, wanted=wanted)]

        return step

    eight = list(range(len(decodes)))
    steps = {
        "1 decode": _alone(model, 1),
        "8 decodes": batch,
        "chunk": _alone(model, _CHUNK),
        "engine: 8 decodes": paged(model, decodes, eight),
        OWN_KERNEL: paged(model_on(*parts, OwnKernel(widens=False, reads_hidden=False)), decodes, eight),
        "engine: chunk": paged(model, chunk, [_CHUNK - 1]),
        "engine: 8 decodes and a chunk": paged(model, decodes + chunk, eight),
    }
    return steps if name == "mlx" else {step: make for step, make in steps.items() if step != OWN_KERNEL}


def _of_mlx_lm(model: MlxLmModel) -> dict[str, Step]:
    def batch() -> list[mx.array]:
        rows = [_prefilled(model, stored) for stored in _STORED]
        layers = [BatchKVCache.merge(list(parts)) for parts in zip(*rows, strict=True)]
        model.network(_tokens(len(rows), 1), cache=layers)  # which makes room for more than its own tokens
        mx.eval([layer.state[:4] for layer in layers])
        # Where the next step begins is counted on the device, for every layer.
        return [model.network(_tokens(len(rows), 1), cache=layers), *(layer.offset for layer in layers)]

    chunk = _alone(model, _CHUNK)

    def both() -> list[mx.array]:
        return [*batch(), *chunk()]

    return {
        "1 decode": _alone(model, 1),
        "8 decodes": batch,
        "chunk": chunk,
        "engine: 8 decodes": batch,
        OWN_KERNEL: batch,
        "engine: chunk": chunk,
        "engine: 8 decodes and a chunk": both,
    }


def _alone(model: Any, new: int) -> Step:
    def step() -> list[mx.array]:
        cache = _prefilled(model, _CHUNK_BEHIND)
        return [model(_tokens(1, new), _CHUNK_BEHIND, cache, wanted=Wanted(last=1))]

    return step


def _prefilled(model: Any, num_tokens: int) -> Any:
    cache = model.create_kv_cache()
    model(_tokens(1, num_tokens), 0, cache)
    for layer in cache:
        layer.materialize()
    return cache


def _tokens(rows: int, new: int) -> mx.array:
    return mx.array([[1] * new] * rows, mx.int32)


if __name__ == "__main__":
    show("launches", launch_sections())
