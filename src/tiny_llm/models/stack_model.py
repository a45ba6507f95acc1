"""All layers of a model as one operator, planned, started and ended once a step, not once a layer."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import KernelOps, LayerStack, ModelConfig, Wanted

from ..cache.memory import Memory
from .ops_model import OpsModel
from .qwen import Weights


class StackModel(OpsModel):
    """An `OpsModel` whose layers run as one operator in every step that the operator accepts."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: KernelOps, stack: LayerStack) -> None:
        """`stack` computes all layers."""
        raise NotImplementedError("task 3.2.6")

    def forward(
        self, tokens: mx.array, offsets: Sequence[int], cache: Sequence[Memory] = (), *, wanted: Wanted
    ) -> mx.array:
        """Like `QwenModel.forward`. If `stacked` returns None, the layers run one at a time."""
        raise NotImplementedError("task 3.2.6")


def stacked(stack: LayerStack, x: mx.array, cache: Sequence[Memory], wanted: Wanted) -> mx.array | None:
    """Runs all layers on x [B, L, E] -> [rows, n, E]; updates keys, values and offsets in `cache`.

    In the last layer only the rows and tokens of `wanted` continue. A `TinyKvFullCache` without storage gets
    the stack's storage. Returns None, and stores nothing, if the layers must run one at a time: without a
    cache, and for caches of another class or dtype, without room for L more tokens, or whose storage is
    still being computed.
    """
    raise NotImplementedError("task 3.2.6")
