"""Checks a decode kernel on this device, and compares its time with gathering the blocks."""

import random
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Final

import mlx.core as mx

from tiny_llm_lab.runtime.native.device.decode_kernel import CELLS, Decodes, always
from tiny_llm_lab.runtime.native.device.fused_checks import draw, is_close, written_out
from tiny_llm_lab.runtime.native.device.ladder import LAYERS, Cell, compared, judged
from tiny_llm_lab.runtime.native.device.verdict import Verdict
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.types import Clock

# Stored tokens of each request; H, G, D and block size.
_SHAPES: Final = (
    ([1], (14, 2, 64, 16)),
    ([33, 7, 16], (8, 4, 128, 8)),
    ([70, 1, 31, 32, 5], (4, 4, 80, 32)),
    ([1 + 5 * row % 67 for row in range(64)], (8, 1, 64, 16)),
    ([257], (5, 1, 128, 32)),
    ([513, 1, 512], (9, 1, 64, 16)),
    ([1030, 30], (2, 2, 128, 32)),
    ([700], (4, 1, 80, 16)),
    ([513, 1, 30], (16, 2, 256, 16)),
    ([1030, 7], (12, 1, 256, 32)),
)
# Timed by D with the kv heads, and query heads of each, of Qwen3-0.6B and a Qwen3.5 of 9B, or with as many kv
# heads as stay below this size: what is gathered is as large, and some layers of it are in flight.
_TIMED: Final = {128: (8, 2), 256: (4, 4)}
_BLOCK_SIZE, _MOST_BYTES = 16, 1 << 28
_MOST_DRAWN = 1024  # blocks; in a larger pool they repeat
_DTYPES: Final = (mx.float32, mx.float16, mx.bfloat16)


class _Step:
    """Drawn queries [T, H, 1, D], a row for each request, and pools with its blocks in random order."""

    def __init__(self, lengths: list[int], sizes: tuple[int, int, int, int], dtype: mx.Dtype) -> None:
        heads, groups, dim, size = sizes
        self.lengths, counts = lengths, [-(-length // size) for length in lengths]
        ids = random.Random(1).sample(range(sum(counts)), sum(counts))
        tables = [[*(ids.pop() for _ in range(count)), *[0] * (max(counts) - count)] for count in counts]
        self.tables = mx.array(tables, mx.int32)
        self.query = draw(1, (len(lengths), heads, 1, dim), dtype)
        drawn = (min(sum(counts), _MOST_DRAWN), groups, size, dim)
        repeated = mx.arange(sum(counts)) % drawn[0]
        self.keys, self.values = (draw(i, drawn, dtype)[repeated] for i in (2, 3))
        mx.eval(self.query, self.keys, self.values, self.tables)

    def by(self, ops: MlxOps, query: mx.array) -> mx.array:
        """[T, 1, H * D]."""
        where = (self.keys, self.values, range(len(self.lengths) + 1), self.lengths, self.tables)
        return ops.paged_attention(query, *where, query.shape[-1] ** -0.5)

    def want(self) -> mx.array:
        """What `by` should return for the drawn queries."""
        k, v = (pool[self.tables].swapaxes(1, 2).flatten(2, 3) for pool in (self.keys, self.values))
        visible = (mx.arange(k.shape[2]) < mx.array(self.lengths)[:, None])[:, None, None]
        return written_out(self.query, k, v, visible).swapaxes(1, 2).flatten(2)


def judge_decodes(subject: str, kernel: Decodes, clock: Clock, dim: int = 128) -> Verdict:
    """The verdict on a kernel, perhaps a learner's; whatever it raises, we gather blocks as before.

    `dim`: 128, for heads of up to so many numbers, or 256.
    """
    ops = MlxOps(widens=False, kernel=always(kernel))
    measure = partial(_measured, ops, clock, dim)
    return judged(subject, _wrong_shapes(ops, dim), CELLS, measure, "gathering, rows x tokens")


def _wrong_shapes(ops: MlxOps, dim: int) -> Iterator[str]:
    shapes = [each for each in _SHAPES if (each[1][2] > 128) == (dim > 128)]
    for dtype, (lengths, sizes) in product(_DTYPES, shapes):
        step = _Step(lengths, sizes, dtype)
        if not is_close(step.by(ops, step.query), step.want()):
            yield f"{len(lengths)} rows with H, G, D, block size = {sizes}, {dtype}"


def timed_shape(rows: int, tokens: int, dim: int) -> tuple[int, int, int]:
    """Rows, stored tokens of each and kv heads with which a cell of 128 or 256 numbers a head is timed."""
    per_head = rows * tokens * dim * 2 * mx.bfloat16.size
    heads = max(1, min(_TIMED[dim][0], _MOST_BYTES // per_head))
    return min(rows, rows * _MOST_BYTES // (per_head * heads)), tokens, heads


def _measured(ops: MlxOps, clock: Clock, dim: int, cell: Cell) -> tuple[float, float]:
    """The kernel's time divided by gathering's, of some layers each."""
    rows, tokens, heads = timed_shape(*cell, dim)
    step = _Step([tokens] * rows, (heads * _TIMED[dim][1], heads, dim, _BLOCK_SIZE), mx.bfloat16)
    layers = min(LAYERS, 2 * _MOST_BYTES // (step.keys.nbytes + step.values.nbytes))

    def run(by: MlxOps) -> None:
        query = step.query
        for _ in range(layers):
            query = step.by(by, query).reshape(query.shape)
        mx.eval(query)

    return compared([partial(partial, run, each) for each in (MlxOps(widens=False), ops)], clock), 0.0
