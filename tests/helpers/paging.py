"""Requests whose keys and values lie scattered over the blocks of a pool."""

import mlx.core as mx
import numpy as np


def scattered_blocks(seed, block_size, lengths, spare=3):
    """Block ids for requests of `lengths` tokens, in no order, and how many blocks there are."""
    counts = [-(-length // block_size) for length in lengths]
    num_blocks = sum(counts) + spare
    ids = np.random.default_rng(seed).permutation(num_blocks).tolist()
    return [[ids.pop() for _ in range(count)] for count in counts], num_blocks


def in_pages(dense, block_ids, block_size, num_blocks, fill=0.0):
    """A pool [num_blocks, G, block_size, D] with dense[r] [G, S, D] in the blocks of request r."""
    groups, _, dim = dense[0].shape
    pool = mx.full((num_blocks, groups, block_size, dim), fill, dense[0].dtype)
    for tokens, ids in zip(dense, block_ids, strict=True):
        for i, block in enumerate(ids):
            part = tokens[:, i * block_size : (i + 1) * block_size]
            pool[block, :, : part.shape[1]] = part
    mx.eval(pool)
    return pool


def packed_rows(dense, sizes):
    """Rows [T, H, 1, D] of dense[r] [H, L, D], the last sizes[r] tokens of each request."""
    rows = [tokens[:, tokens.shape[1] - size :] for tokens, size in zip(dense, sizes, strict=True)]
    return mx.concatenate(rows, axis=1).transpose(1, 0, 2)[:, :, None]


def tables_of(block_ids):
    """Block tables [R, longest] int32, with zeros behind the last block of a request."""
    longest = max(map(len, block_ids))
    return mx.array([[*ids, *[0] * (longest - len(ids))] for ids in block_ids], mx.int32)
