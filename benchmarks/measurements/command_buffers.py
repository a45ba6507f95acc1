"""How many command buffers Metal makes of a decode step, counted on any machine.

MLX 0.32 (backend/metal/device.cpp) ends a buffer after an operator when it holds more operators than one
limit, or when the arrays its operators read have more elements, in Mi, than another. An array counts once a
buffer, whole, however little of it is read; a view counts as what it is a view of. These rules are followed
on the graph of a step with real sizes. Nothing is computed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any, Final, cast
from unittest.mock import patch

import mlx.core as mx

from benchmarks.measurements.launch_table import OwnKernel
from benchmarks.measurements.launches import VIEWS, fused, whole
from benchmarks.measurements.reference import model_on, reference
from benchmarks.measurements.show import show
from tiny_llm_lab.measure.bench.report import Column, Row, Section
from tiny_llm_lab.runtime.kv_memory import block_bytes
from tiny_llm_lab.runtime.models.loading import LIMITS, BufferLimits
from tiny_llm_lab.runtime.models.random.random_checkpoint import parameters_of, tensor_shapes
from tiny_llm_lab.runtime.models.random.shapes import parse_shape
from tiny_llm_lab.runtime.native.device.delta_checks import CELLS
from tiny_llm_lab.runtime.native.device.delta_decode import delta_decode
from tiny_llm_lab.runtime.native.device.delta_operator import Stacked, delta_operator, sizes_of
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.runtime.native.runtime import DeltaLayer, MlxDelta
from tiny_llm_lab.types import DeltaKernel, ModelConfig, QuantizedWeights, Slice, Wanted, Weight
from tiny_llm_lab.types.computing.paged import StateUse

_SIZES: Final = ("0.6b,bits=4", "0.6b", "4b,bits=4", "8b,bits=4", "8b")
MODELS: Final = (*(f"qwen3-{size}" for size in _SIZES), "qwen3.5-0.8b,bits=4", "qwen3.5-9b,bits=4")
STREAMS: Final = (1, 8)
POOL_BYTES: Final = 4 * 2**30  # the most that a pool takes by itself on Metal
_BLOCK, _STORED = 16, 500

_VIEWS: Final = VIEWS | {"Full"}  # what starts no operator
_IN_PLACE: Final = frozenset(["DynamicSliceUpdate", "Scatter", "SliceUpdate"])


# By the last letter of the architecture that Metal names: g of M1 to M5 and their Pros, s of Max, d of Ultra.
MLX_LIMITS: Final = {"g": BufferLimits(40, 40), "s": BufferLimits(50, 50), "d": BufferLimits(50, 50)}


@dataclass
class _Counter:
    limits: BufferLimits
    owner: dict[str, str] = field(default_factory=dict)  # of a view: whose memory it shows
    ended: int = 0
    ops: int = 0
    elements: int = 0
    seen: set[str] = field(default_factory=set)

    def add(self, node: dict[str, Any]) -> None:
        """One primitive of a traced graph."""
        name, inputs = node["name"], node["inputs"]
        if name in _VIEWS or name in _IN_PLACE:
            for output, *_ in node["outputs"]:
                self.owner[output] = self._root(inputs[0][0]) if inputs and name != "Full" else output
        # Depends holds a stand-in for a fused operator together with what that reads.
        read = inputs[1:] if name == "Depends" else [] if name in _VIEWS else inputs
        for each, shape, _ in read:
            if (root := self._root(each)) not in self.seen:
                self.seen.add(root)
                self.elements += prod(shape)
        if name not in _VIEWS:
            self.ops += 1
            if self.ops > self.limits.ops or self.elements >> 20 > self.limits.mi_elements:
                self.ended, self.ops, self.elements, self.seen = self.ended + 1, 0, 0, set()

    def _root(self, name: str) -> str:
        return self.owner.get(name, name)


def traced(make: Callable[..., Sequence[mx.array]], *pools: mx.array) -> list[dict[str, Any]]:
    """The primitives of what `make(*pools)` returns, in the order of evaluation; none is computed."""
    told: list[dict[str, Any]] = []
    with fused():
        mx.export_function(told.append, make, *pools)
    return [each for each in told if each["type"] == "primitive"]


def num_buffers(graph: Sequence[dict[str, Any]], limits: BufferLimits) -> int:
    """The command buffers of a traced graph, the last one included."""
    counter = _Counter(limits)
    for node in graph:
        counter.add(node)
    return counter.ended + bool(counter.ops)


def step_graph(model: str, num_streams: int, own_kernel: bool) -> list[dict[str, Any]]:
    """A decode step of an engine with `num_streams` requests on `random:model`, over a pool of POOL_BYTES."""
    config, weights = _lazy(model)
    num_blocks = POOL_BYTES // block_bytes(config, mx.bfloat16, _BLOCK)
    with whole():
        network = model_on(config, weights, *operators(own_kernel))
        with patch.object(mx, "eval", lambda *_: None):  # the pools stay lazy: no memory
            cache = network.create_paged_kv_cache(num_blocks, _BLOCK)
        build = decode_step(network, cache, num_streams, _STORED)
        return traced(build, *cache.pools)


def operators(own_kernels: bool) -> tuple[MlxOps, DeltaKernel]:
    """MLX's own operators, also for a gated delta net, or kernels of ours for attention and such a net."""
    kernel, ops = (delta_decode, OwnKernel) if own_kernels else (delta_operator, MlxOps)
    delta = MlxDelta(cast(DeltaKernel, None), lambda _: dict.fromkeys(CELLS, kernel))
    return ops(widens=False, reads_hidden=False), delta


def decode_step(model: Any, cache: Any, num_streams: int, num_stored: int) -> Callable[..., list[mx.array]]:
    """Builds a decode of `num_streams` requests on the given pools: the tokens, and the pools after it.

    `cache` has its own pools afterwards, so the graph is the caller's to drop.
    """
    size = cache.block_size
    each = num_stored // size + 1
    slices = [Slice(range(each * i, each * (i + 1)), num_stored, 1, StateUse(i)) for i in range(num_streams)]
    half, stored, llm = len(cache.keys), cache.pools, reference()
    before = _states(model, cache, num_streams)

    def build(*pools: mx.array) -> list[mx.array]:
        cache.keys[:], cache.values[:] = pools[:half], pools[half:]
        for layer, net, states in before:
            layer.last, net.states = states, dict(enumerate(states))
            cache.seen = dict.fromkeys(range(num_streams), num_stored)
        layout = llm.StepLayout.of(size, slices)
        layers, wanted = cache.begin_step(layout), Wanted(rows=list(range(num_streams)))
        logits = model(mx.ones((num_streams, 1), mx.int32), layout.positions, layers, wanted=wanted)
        made = [mx.argmax(logits, axis=-1), *cache.pools]
        cache.keys[:], cache.values[:] = stored[:half], stored[half:]
        return made

    return build


def _states(model: Any, cache: Any, num_streams: int) -> list[tuple[DeltaLayer, Any, Stacked]]:
    """Of each gated delta net what computes it and its states, and what a step of the same requests left."""
    rules, found = [layer.mixer.weights.net for layer in model.layers if layer.mixer.weights.net], []
    for rule, net in zip(rules, getattr(cache, "states", ()), strict=True):
        sizes = cache.hybrid.delta_net
        states = Stacked(*(mx.zeros((num_streams, *each)) for each in (sizes.tail_shape, sizes.state_shape)))
        found.append((model.delta_kernel.layer(rule, sizes_of(rule, states[0])), net, states))
    mx.eval([each for *_, each in found])
    return found


def table() -> Iterator[Section]:
    """Buffers of a step: by MLX's own limits, and by ours."""
    titles = {"base": "base, Pro", "max": "Max, Ultra", "ours": "ours"}
    columns = [Column(name, title, ".0f") for name, title in titles.items()]
    rows, limits = [], {"base": MLX_LIMITS["g"], "max": MLX_LIMITS["s"], "ours": LIMITS}
    for model, own_kernel, streams in product(MODELS, (False, True), STREAMS):
        graph = step_graph(model, streams, own_kernel)
        samples = {name: [float(num_buffers(graph, each))] for name, each in limits.items()}
        rows.append(Row(f"{model}: {streams}, {'own kernel' if own_kernel else 'gathered'}", samples))
    yield Section("command-buffers", "command buffers of a decode step", columns, rows)


def _lazy(model: str) -> tuple[ModelConfig, dict[str, Weight]]:
    """Configuration and weights of `random:model`, as zeros that are never computed."""
    shape, weights = parse_shape(model), dict[str, Weight]()
    config, parameters = parameters_of(shape)
    dtypes = {"BF16": mx.bfloat16, "U32": mx.uint32}
    for name, size in parameters:
        tensors = tensor_shapes(shape, name, size).values()
        first, *groups = (mx.zeros(each, dtypes[dtype]) for dtype, each in tensors)
        weights[name] = first
        if groups:  # the biases are the scales
            weights[name] = QuantizedWeights(first, groups[0], groups[0], shape.group, shape.bits)
    return config, weights


if __name__ == "__main__":
    show("command-buffers", table())
