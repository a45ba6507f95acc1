"""What Python does for one decode step on MLX's fused operators, with mlx-lm for comparison.

Nodes of MLX's graph, views included, and the milliseconds that building them takes. Nothing is computed: each
fused operator is one node, as on a GPU. The time is the processor's for this thread, the least of many; it
depends on this machine, so the ratio says more.
"""

import gc
import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import mlx.core as mx
from recipes.measurements.command_buffers import decode_step, traced
from recipes.measurements.launch_table import OwnKernel
from recipes.measurements.launches import fused
from recipes.measurements.show import show

from tiny_llm_lab.measure.bench.report import Column, Row, Section
from tiny_llm_lab.runtime.baselines.mlx_lm_model import MlxLmModel, build_model
from tiny_llm_lab.runtime.interleave import interleave
from tiny_llm_lab.runtime.models import load_checkpoint
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.types import Checkpoint
from tiny_llm_lab.types.packages import PACKAGES

_MODEL: Final = "random:qwen3-shrunk,bits=4,layers=28"
_STORED, _BLOCK, _ROUNDS = 20, 16, 150
_COLUMNS: Final = (Column("nodes", "nodes", ".0f"), Column("ms", "ms to build", ".2f"))

# Builds one step on the given keys and values, which it may change.
Build = Callable[..., Sequence[mx.array]]


def builders(checkpoint: Checkpoint, num_streams: int) -> dict[str, tuple[Build, Sequence[mx.array]]]:
    """By name how a decode step of `num_streams` is built, and the arrays that it stores into."""
    llm: Any = TaskNames(importlib.import_module(PACKAGES["ref"]))
    plain, own = MlxOps(widens=False, reads_hidden=False), OwnKernel(widens=False, reads_hidden=False)
    return {
        "mlx-lm": _of_mlx_lm(build_model(checkpoint), num_streams),
        "engine, gathered": _of_engine(llm, checkpoint, plain, num_streams),
        "engine, own kernel": _of_engine(llm, checkpoint, own, num_streams),
    }


def _of_engine(
    llm: Any, checkpoint: Checkpoint, ops: MlxOps, num_streams: int
) -> tuple[Build, Sequence[mx.array]]:
    model = llm.Qwen(checkpoint.config, checkpoint.weights, ops)
    cache = model.create_paged_kv_cache((_STORED // _BLOCK + 1) * num_streams, _BLOCK)
    return decode_step(llm, model, cache, num_streams, _STORED), cache.pools


def _of_mlx_lm(model: MlxLmModel, num_streams: int) -> tuple[Build, Sequence[mx.array]]:
    config = model.config  # a dense batch of equal lengths: less than its batch generator does
    shape = (num_streams, config.num_key_value_heads, 256, config.head_dim)
    stored = [mx.zeros(shape) for _ in range(2 * config.num_hidden_layers)]
    mx.eval(stored)

    def build(*arrays: mx.array) -> list[mx.array]:
        layers: Any = model.create_kv_cache()
        for i, layer in enumerate(layers):
            layer.keys, layer.values, layer.offset = *arrays[2 * i : 2 * i + 2], _STORED
        tokens = mx.ones((num_streams, 1), mx.int32)
        logits = model.network(tokens, cache=layers)[:, -1]
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        made = [mx.argmax(logprobs, axis=-1)]
        return made + [part for layer in layers for part in (layer.keys, layer.values)]

    return build, stored


def table() -> Iterator[Section]:
    """Nodes and the shortest time of one and of eight streams, the sides in turns."""
    checkpoint = load_checkpoint(_MODEL, dtype="float32")
    for streams in (1, 8):
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
        rows = [
            Row(name, {"nodes": [float(_num_nodes(*made[name]))], "ms": [1e3 * min(times[name])]})
            for name in made
        ]
        yield Section("step-graph", f"one decode step of {streams}, 28 layers", _COLUMNS, rows)


def _num_nodes(build: Build, stored: Sequence[mx.array]) -> int:
    """Without the nodes that hold a stand-in of a fused operator together."""
    return sum(node["name"] != "Depends" for node in traced(build, *stored))


if __name__ == "__main__":
    show("step-graph", table())
