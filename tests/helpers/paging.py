"""Requests whose keys and values lie scattered over the blocks of a pool."""

import math

import mlx.core as mx
import numpy as np
from tests.helpers import oracle
from tests.helpers.tolerance import as_float64
from tests.helpers.toy import random_array

from tiny_llm_lab.types import Wanted
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


class PagedPrompts:
    """Prompts that go through a model in steps of packed rows, with their blocks in no order."""

    def __init__(self, llm, model, prompts, block_size, dtype=mx.float32, kv_bits=None):
        self.ids, num_blocks = scattered_blocks(2, block_size, [len(p) for p in prompts])
        self.cache = llm.PagedKvCache(model.config, num_blocks, block_size, dtype, kv_bits)
        self.llm, self.model, self.block_size = llm, model, block_size
        self.prompts, self.done = [mx.array(p) for p in prompts], [0] * len(prompts)

    def step(self, sizes, rows=None):
        """Compute sizes[r] more tokens of each request r that has them: logits of all rows, or `rows`."""
        slices, tokens = [], [self.prompts[0][:0]]
        for r, prompt in enumerate(self.prompts):
            if part := prompt[self.done[r] :][: sizes[r]].size:
                slices.append(Slice(self.ids[r], self.done[r], part))
                tokens.append(prompt[self.done[r] : self.done[r] + part])
                self.done[r] += part
        layout = self.llm.StepLayout.of(self.block_size, slices)
        layers = self.cache.begin_step(layout)
        wanted = Wanted(rows=rows)
        logits = self.model(mx.concatenate(tokens)[:, None], layout.positions, layers, wanted=wanted)
        mx.eval(logits)
        return logits

    def run(self, steps):
        """All prompts through, in steps of these sizes: their logits [L, V]."""
        got = [[] for _ in self.prompts]
        for sizes in steps:
            before, first = list(self.done), 0
            logits = self.step(sizes)
            for r, old in enumerate(before):
                got[r].append(logits[first : first + self.done[r] - old, 0])
                first += self.done[r] - old
        assert self.done == [len(p) for p in self.prompts]
        return [mx.concatenate(parts) for parts in got]
