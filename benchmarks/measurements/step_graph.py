"""What Python does for one decode step on MLX's fused operators, with mlx-lm for comparison.

Nodes of MLX's graph, views included; those that start an operator; and the milliseconds that building them
takes. Nothing is computed: each fused operator is one node, as on a GPU. The time is the processor's for this
thread, the median of many; it depends on this machine, so the ratio says more.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from statistics import median
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models.cache import KVCache, make_prompt_cache
from mlx_lm.utils import load_model

from benchmarks.measurements.command_buffers import decode_step, operators
from benchmarks.measurements.launches import VIEWS, fused, nodes
from benchmarks.measurements.reference import model_on
from benchmarks.measurements.show import show
from tiny_llm_lab.measure.bench.report import Column, Row, Section
from tiny_llm_lab.runtime.interleave import interleave
from tiny_llm_lab.runtime.models import load_checkpoint
from tiny_llm_lab.types import Checkpoint

_MODELS: Final = ("random:qwen3-shrunk,bits=4,layers=28", "random:qwen3.5-0.8b,bits=4,layers=8,vocab=2048")
_STORED, _BLOCK, _ROUNDS = 20, 16, 150
_COLUMNS: Final = (
    Column("nodes", "nodes", ".0f"),
    Column("launches", "launches", ".0f"),
    Column("ms", "ms to build", ".2f"),
)

# Builds one step on the given keys and values, which it may change.
Build = Callable[..., Sequence[mx.array]]


def builders(checkpoint: Checkpoint, num_streams: int) -> dict[str, tuple[Build, Sequence[mx.array]]]:
    """By name how a decode step of `num_streams` is built, and the arrays that it stores into."""
    return {
        "mlx-lm": _of_mlx_lm(checkpoint, num_streams),
        "engine, gathered": _of_engine(checkpoint, False, num_streams),
        "engine, own kernel": _of_engine(checkpoint, True, num_streams),
    }


def _of_engine(checkpoint: Checkpoint, own: bool, num_streams: int) -> tuple[Build, Sequence[mx.array]]:
    model = model_on(checkpoint.config, checkpoint.weights, *operators(own))
    cache = model.create_paged_kv_cache((_STORED // _BLOCK + 1) * num_streams, _BLOCK)
    return decode_step(model, cache, num_streams, _STORED), cache.pools


def _of_mlx_lm(checkpoint: Checkpoint, num_streams: int) -> tuple[Build, Sequence[mx.array]]:
    # A dense batch of equal lengths: less than its batch generator does.
    network = load_model(checkpoint.path, lazy=True)[0]
    layers: list[Any] = make_prompt_cache(network)
    network(mx.ones((num_streams, 1), mx.int32), cache=layers)  # makes room for 256 tokens
    stored = _stored(layers)
    mx.eval(stored, network.parameters())

    def build(*arrays: mx.array) -> list[mx.array]:
        for layer, *pair in zip(layers, arrays[::2], arrays[1::2], strict=True):
            if isinstance(layer, KVCache):
                layer.keys, layer.values, layer.offset = *pair, _STORED
            else:
                layer.cache = pair
        logits = network(mx.ones((num_streams, 1), mx.int32), cache=layers)[:, -1]
        made = mx.argmax(logits - mx.logsumexp(logits, axis=-1, keepdims=True), axis=-1)
        return [made, *_stored(layers)]

    return build, stored


def _stored(layers: list[Any]) -> list[mx.array]:
    return [part for each in layers for part in vars(each).get("cache") or (each.keys, each.values)]


def table() -> Iterator[Section]:
    """Nodes, launches and the time of one and of eight streams, the sides in turns."""
    for model, streams in product(_MODELS, (1, 8)):
        checkpoint = load_checkpoint(model, dtype="bfloat16")
        made = builders(checkpoint, streams)
        times: dict[str, list[float]] = {name: [] for name in made}
        with fused():
            for number, name in interleave(tuple(made), _ROUNDS, warm_ups=2):
                build, stored = made[name]
                copies = [mx.array(each) for each in stored]
                gc.disable()
                start_s = time.thread_time()
                graph = build(*copies)
                took_s = time.thread_time() - start_s
                gc.enable()
                del graph
                times[name] += [took_s] if number >= 0 else []
        rows = [Row(name, {"ms": [1e3 * median(times[name])]} | _counts(*made[name])) for name in made]
        yield Section("step-graph", f"one decode step of {streams}, {model}", _COLUMNS, rows)


def _counts(build: Build, stored: Sequence[mx.array]) -> dict[str, list[float]]:
    found = nodes(partial(build, *stored))
    return {"nodes": [found.total()], "launches": [found.total() - sum(found[name] for name in VIEWS)]}


if __name__ == "__main__":
    show("step-graph", table())
