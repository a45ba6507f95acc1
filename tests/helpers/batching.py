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
