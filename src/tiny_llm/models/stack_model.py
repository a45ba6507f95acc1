"""All layers of a model as one operator: planned, started and ended once a step, and not once a layer."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import KernelOps, LayerStack, ModelConfig, Wanted

from ..cache.memory import Memory
from .ops_model import OpsModel
from .qwen import Weights


class StackModel(OpsModel):
    """An `OpsModel` whose layers are one operator in every step that this takes."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: KernelOps, stack: LayerStack) -> None:
        """`stack` computes all layers."""
        raise NotImplementedError("task 3.2.6")

    def forward(
        self, tokens: mx.array, offsets: Sequence[int], cache: Sequence[Memory] = (), *, wanted: Wanted
    ) -> mx.array:
        """As `QwenModel.forward`; where `stacked` returns None the layers go one by one."""
        raise NotImplementedError("task 3.2.6")


def stacked(stack: LayerStack, x: mx.array, cache: Sequence[Memory], wanted: Wanted) -> mx.array | None:
    """All layers on x [B, L, E] -> [rows, n, E], and the new keys, values and offsets in `cache`.

    In the last layer only the rows and tokens of `wanted` go on. A `TinyKvFullCache` without storage gets
    that of the stack. Returns None, with nothing stored, where the layers must go one by one: without a
    cache, and for caches of another class or dtype, without room for L more tokens, or whose storage is
    still being computed.
    """
    raise NotImplementedError("task 3.2.6")
