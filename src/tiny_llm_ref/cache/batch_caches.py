"""The caches of a batch: for each layer of a model what holds several requests at once."""

from typing import cast

from tiny_llm_lab.types import BatchKvCache, Model

from .kv_cache import BatchingKvCache
from .state import BatchingState, SequenceState


def batch_caches(model: Model, max_active_requests: int, max_seq_len: int | None) -> list[BatchKvCache]:
    """One empty cache per layer for so many requests of at most `max_seq_len` tokens.

    A layer whose cache for one request is a `SequenceState` gets a `BatchingState`, any other one a
    `BatchingKvCache`: storage of layer i has a headroom of i tokens, so that not all layers grow in one step.
    """
    return [
        cast(BatchKvCache, BatchingState(max_active_requests))
        if isinstance(layer, SequenceState)
        else BatchingKvCache(max_active_requests, max_seq_len, model.ops, headroom=i)
        for i, layer in enumerate(model.create_kv_cache())
    ]
