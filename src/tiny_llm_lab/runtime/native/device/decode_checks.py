"""Is a package's kernel for decodes right on this device, and when is it faster than gathering blocks?"""

import random
from itertools import product
from statistics import median
from typing import Final

import mlx.core as mx

from tiny_llm_lab.runtime.interleave import interleave
from tiny_llm_lab.runtime.native.device.decode_kernel import TIMED, DecodeKernel, PagedRows
from tiny_llm_lab.runtime.native.device.fused_checks import draw, in_one_line, is_close, written_out
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
)
_STORED, _QWEN3 = 512, (16, 8, 128, 16)  # timed, with the heads of Qwen3-0.6B
_DTYPES: Final = (mx.float32, mx.float16, mx.bfloat16)
_ROUNDS, _WARM_UPS, _LAYERS = 7, 2, 4


class _Decodes:
    """Drawn queries [T, H, 1, D], a row for each request, and pools with its blocks in no order."""

    def __init__(self, lengths: list[int], sizes: tuple[int, int, int, int], dtype: mx.Dtype) -> None:
        heads, groups, dim, size = sizes
        self.lengths, counts = lengths, [-(-length // size) for length in lengths]
        ids = random.Random(1).sample(range(sum(counts)), sum(counts))
        tables = [[*(ids.pop() for _ in range(count)), *[0] * (max(counts) - count)] for count in counts]
        self.tables = mx.array(tables, mx.int32)
        self.query = draw(1, (len(lengths), heads, 1, dim), dtype)
        self.keys, self.values = (draw(i, (sum(counts), groups, size, dim), dtype) for i in (2, 3))
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


def judge_decodes(subject: str, call: PagedRows, clock: Clock) -> Verdict:
    """The verdict on a kernel, perhaps a learner's: whatever it raises, blocks are gathered as before."""
    ops = MlxOps(widens=False, kernel=DecodeKernel(call, lambda: tuple(TIMED)))
    try:
        for dtype, (lengths, sizes) in product(_DTYPES, _SHAPES):
            step = _Decodes(lengths, sizes, dtype)
            if not is_close(step.by(ops, step.query), step.want()):
                wrong = f"{len(lengths)} rows with H, G, D, block size = {sizes}, {dtype}"
                return Verdict(subject, False, f"wrong for {wrong}: blocks are gathered")
        ratios = {rows: _ratio(ops, rows, clock) for rows in TIMED}
    except Exception as error:
        return Verdict(subject, False, f"fails ({in_one_line(error)}): blocks are gathered")
    faster = tuple(rows for rows, ratio in ratios.items() if ratio < 1)
    used = f"used with {' and '.join(TIMED[rows] for rows in faster)} rows" if faster else "not used"
    times = ", ".join(f"{ratio:.2f}" for ratio in ratios.values())
    says = f"right; takes {times} of the time of gathering blocks with 1, 8, 64 rows; {used}"
    return Verdict(subject, True, says, faster)


def _ratio(ops: MlxOps, rows: int, clock: Clock) -> float:
    """The kernel's time over that of gathering: medians of alternating runs of some layers."""
    step, variants = _Decodes([_STORED] * rows, _QWEN3, mx.bfloat16), (MlxOps(widens=False), ops)
    times: tuple[list[float], list[float]] = ([], [])
    for number, which in interleave((0, 1), _ROUNDS, warm_ups=_WARM_UPS):
        start_s, query = clock(), step.query
        for _ in range(_LAYERS):
            query = step.by(variants[which], query).reshape(query.shape)
        mx.eval(query)
        if number >= 0:
            times[which].append(clock() - start_s)
    return median(times[1]) / median(times[0])
