"""All layers of a model as one operator: planned, started and ended once a step, and not once a layer."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import KvCache, LayerStack

from ..cache.kv_cache import BatchingKvCache, TinyKvFullCache
from ..cache.paged_attention import PagedLayer
from .fused import FusedLayer

_Rows = TinyKvFullCache | BatchingKvCache
_Storage = tuple[_Rows, mx.array, mx.array]  # with its keys and values


def stack_of(layers: Sequence[FusedLayer | None]) -> LayerStack | None:
    """The operator for all `layers`, from their `ops`.

    None where there is none for them: with experts, with an `all_sum` over ranks, or without operators.
    """
    fused = [layer for layer in layers if layer is not None]
    weights = [layer.weights for layer in fused if layer.all_sum is None and layer.weights.router is None]
    if not weights or len(weights) < len(layers):
        return None
    return fused[0].ops.layer_stack(weights, fused[0].rope)


def stacked(
    stack: LayerStack,
    x: mx.array,
    cache: Sequence[KvCache | PagedLayer] | None,
    keep: int | None,
    rows: Sequence[int] | None,
) -> mx.array | None:
    """All layers on x [B, L, E] -> [len(rows), keep, E], and the new keys, values and offsets in `cache`.

    In the last layer only these `rows` of the batch go on (None = all), each with its last `keep` tokens
    (None = all L). A `TinyKvFullCache` without storage gets that of the stack. Returns None, with nothing
    stored, where the layers must go one by one: without a cache, and for caches of another class or dtype,
    without room for L more tokens, or whose storage is still being computed.
    """
    if cache is None:
        return None
    length, first = x.shape[1], cache[0]
    kept = length if keep is None else min(keep, length)
    if isinstance(first, PagedLayer):
        fits = first.cache.keys[0].dtype in (x.dtype, mx.int8)
        return stack.over_pages(x, first.cache, first.layout, kept, rows) if fits else None
    new = [layer for layer in cache if isinstance(layer, TinyKvFullCache) and layer.keys is None]
    layers: Sequence[_Rows] = new
    if len(new) < len(cache):
        storage = _with_room(cache, x)
        if not storage:
            return None
        layers, keys, values = zip(*storage, strict=True)
        made = stack.over_rows(x, first.offset, keys, values, kept, rows)
    else:
        made = stack.over_new_rows(x, kept, rows)
    if made is None:
        return None
    for layer, new_keys, new_values in zip(layers, *made[1:], strict=True):
        layer.keys, layer.values = new_keys, new_values
        layer.offset = _moved(layer.offset, length)
    return made[0]


def _with_room(cache: Sequence[KvCache | PagedLayer], x: mx.array) -> list[_Storage]:
    """Of all of `cache`; none unless each has the same tokens and takes those of x as it is."""
    batch, length, _ = x.shape
    storage: list[_Storage] = []
    for layer in cache:
        if not isinstance(layer, TinyKvFullCache | BatchingKvCache):
            return []
        keys, values, offset = layer.keys, layer.values, layer.offset
        if keys is None or values is None or keys.dtype != x.dtype or offset != cache[0].offset:
            return []
        num_rows, longest = (keys.shape[0], offset) if isinstance(offset, int) else (len(offset), max(offset))
        if num_rows != batch or longest + length > keys.shape[2]:
            return []
        storage.append((layer, keys, values))
    return storage


def _moved(offset: int | list[int], length: int) -> int | list[int]:
    return offset + length if isinstance(offset, int) else [row + length for row in offset]
