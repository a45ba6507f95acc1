"""Caches of requests, and batches of them, with random keys and values."""

import mlx.core as mx
from tests.helpers.toy import random_array


def prefilled(llm, length, seed=0, G=2, D=4, dtype=mx.float32):
    cache = llm.TinyKvFullCache()
    shape = (1, G, length, D)
    cache.update_and_fetch(random_array(seed, *shape, dtype=dtype), -random_array(seed, *shape, dtype=dtype))
    return cache


def batch_of(llm, lengths, rows=None, max_seq_len=None, **shape):
    batch = llm.BatchingKvCache(rows or len(lengths), max_seq_len)
    for i, length in enumerate(lengths):
        assert batch.add_request(prefilled(llm, length, seed=i, **shape)) == i
    return batch


def joined(llm, requests, rows=None):
    """The caches of requests, a layer each, as rows of a batch."""
    layers = [llm.BatchingKvCache(rows or len(requests)) for _ in requests[0]]
    for whole, *parts in zip(layers, *requests, strict=True):
        for part in parts:
            whole.add_request(part)
    return layers


def computed_rows(llm, model, prompts, rows=None):
    """A batch in which the model has computed prompts [1, L], one after the other."""
    requests = [model.create_kv_cache() for _ in prompts]
    for prompt, cache in zip(prompts, requests, strict=True):
        model(prompt, 0, cache)
    return joined(llm, requests, rows)
