"""All layers of a model as one operator: planned, started and ended once a step, and not once a layer."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import KvCache, LayerStack

from ..cache.paged_attention import PagedLayer
from .fused import FusedLayer


def stack_of(layers: Sequence[FusedLayer | None]) -> LayerStack | None:
    """The operator for all `layers`, from their `ops`.

    None where there is none for them: with experts, with an `all_sum` over ranks, or without operators.
    """
    raise NotImplementedError("task 3.2.6")


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
    raise NotImplementedError("task 3.2.6")
