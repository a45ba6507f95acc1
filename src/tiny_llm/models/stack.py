"""All layers of a model as one operator, planned, started and ended once a step, not once a layer."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import LayerStack, Memory, Wanted


def stacked(stack: LayerStack, x: mx.array, cache: Sequence[Memory], wanted: Wanted) -> mx.array | None:
    """Runs all layers on x [B, L, E] -> [rows, n, E]; updates the memories in `cache`, one for each layer.

    In the last layer only the rows and tokens of `wanted` continue. If no layer has storage yet, they get the
    stack's storage. Returns None, and stores nothing, if the layers must run one at a time: without a cache,
    if a memory does not `enter`, if the layers differ in what they store, and while storage is computed.
    """
    raise NotImplementedError("task 3.2.6")
