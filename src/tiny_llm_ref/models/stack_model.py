"""All layers of a model as one operator, planned, started and ended once a step, not once a layer."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import KernelOps, LayerStack, ModelConfig, Wanted
from tiny_llm_lab.types.computing.layer_stack import Stored

from ..cache.kv_cache import BatchingKvCache, TinyKvFullCache
from ..cache.memory import Memory
from ..cache.paged_attention import PagedLayer
from .ops_model import OpsModel
from .qwen import Weights

_Rows = TinyKvFullCache | BatchingKvCache


class StackModel(OpsModel):
    """An `OpsModel` whose layers run as one operator in every step that the operator accepts."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: KernelOps, stack: LayerStack) -> None:
        """`stack` computes all layers."""
        super().__init__(config, weights, ops)
        self.stack = stack

    def forward(
        self, tokens: mx.array, offsets: Sequence[int], cache: Sequence[Memory] = (), *, wanted: Wanted
    ) -> mx.array:
        """Like `QwenModel.forward`. If `stacked` returns None, the layers run one at a time."""
        x = self.ops.embedding(tokens, self.embed_tokens.weight)
        hidden = stacked(self.stack, x, cache, wanted)
        return self._logits(self._layer_by_layer(x, offsets, cache, wanted) if hidden is None else hidden)


def stacked(stack: LayerStack, x: mx.array, cache: Sequence[Memory], wanted: Wanted) -> mx.array | None:
    """Runs all layers on x [B, L, E] -> [rows, n, E]; updates keys, values and offsets in `cache`.

    In the last layer only the rows and tokens of `wanted` continue. A `TinyKvFullCache` without storage gets
    the stack's storage. Returns None, and stores nothing, if the layers must run one at a time: without a
    cache, and for caches of another class or dtype, without room for L more tokens, or whose storage is
    still being computed.
    """
    if not cache:
        return None
    (batch, length, _), first = x.shape, cache[0]
    if isinstance(first, PagedLayer):
        fits = first.cache.keys[0].dtype in (x.dtype, mx.int8)
        return stack.over_pages(x, first.cache, first.layout, wanted) if fits else None
    offsets = first.offsets(batch)
    layers = [layer for layer in cache if isinstance(layer, _Rows)]
    if len(layers) < len(cache) or any(layer.offsets(batch) != offsets for layer in layers):
        return None
    made: Stored | None = None
    if all(isinstance(layer, TinyKvFullCache) and not layer.keys.size for layer in layers):
        made = stack.over_new_rows(x, wanted)
    elif all(layer.has_room(batch, length, x.dtype) for layer in layers):
        keys, values = [layer.keys for layer in layers], [layer.values for layer in layers]
        made = stack.over_rows(x, offsets, keys, values, wanted)
    if made is None:
        return None
    for layer, new_keys, new_values in zip(layers, *made[1:], strict=True):
        layer.adopt(new_keys, new_values, length)
    return made[0]
