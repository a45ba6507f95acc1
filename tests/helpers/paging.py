"""Requests whose keys and values lie scattered over the blocks of a pool."""

import math

import mlx.core as mx
import numpy as np
from tests.helpers import oracle
from tests.helpers.tolerance import as_float64
from tests.helpers.toy import random_array

from tiny_llm_lab.types.computing.paged import Slice

# What a step computes: stored tokens of each request, with the new ones, and how many are new.
STEPS = [
    ([1], [1]),
    ([5], [5]),
    ([40], [1]),
    ([40, 7, 33, 32], [1, 1, 1, 1]),
    ([70, 31, 64, 9], [6, 1, 64, 1]),
]


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


class Requests:
    """Random queries, keys and values of requests, and the layout of their last `sizes` tokens."""

    def __init__(self, llm, lengths, sizes, block_size=4, H=4, G=2, D=8, dtype=mx.float32, seed=1):
        self.ids, num_blocks = scattered_blocks(seed, block_size, lengths)
        slices = [Slice(ids, n - new, new) for ids, n, new in zip(self.ids, lengths, sizes, strict=True)]
        self.layout = at = llm.StepLayout.of(block_size, slices)
        self.where = (at.query_starts, at.lengths, at.block_tables)
        self.q, self.k, self.v = (
            [random_array(10 * i + r, heads, n, D, dtype=dtype) for r, n in enumerate(lengths)]
            for i, heads in enumerate((H, G, G))
        )
        # Before the step only the tokens that are stored already, and garbage everywhere else.
        self.old_keys, self.old_values = (
            in_pages(
                [t[:, : t.shape[1] - new] for t, new in zip(tokens, sizes, strict=True)],
                [
                    ids[: -(-(n - new) // block_size)]
                    for ids, n, new in zip(self.ids, lengths, sizes, strict=True)
                ],
                block_size,
                num_blocks,
                math.nan,
            )
            for tokens in (self.k, self.v)
        )
        self.keys, self.values = (
            in_pages(tokens, self.ids, block_size, num_blocks, math.nan) for tokens in (self.k, self.v)
        )
        self.sizes = sizes
        self.new_q, self.new_k, self.new_v = (packed_rows(t, sizes) for t in (self.q, self.k, self.v))

    def want(self, remembered=as_float64):
        """Each request alone, in float64, with keys and values as `remembered`: [T, 1, H * D]."""
        rows = []
        for q, k, v, new in zip(self.q, self.k, self.v, self.sizes, strict=True):
            own, k, v = q[None, :, q.shape[1] - new :], remembered(k), remembered(v)
            out = oracle.attention(own, k[None], v[None], causal=True)[0]
            rows.append(out.swapaxes(0, 1).reshape(new, 1, -1))
        return np.concatenate(rows)
