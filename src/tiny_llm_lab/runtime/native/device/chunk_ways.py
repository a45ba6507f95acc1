"""The ways to compute attention of a chunk, several new tokens over all that are stored, and their test."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import product
from operator import itemgetter
from typing import Any, Final

import mlx.core as mx

from tiny_llm_lab.runtime.native.device import fused_checks
from tiny_llm_lab.runtime.native.device.decode_kernel import TOKENS
from tiny_llm_lab.runtime.native.device.ladder import LAYERS, Cell, compared, judged, timed_for
from tiny_llm_lab.runtime.native.device.verdict import Verdict
from tiny_llm_lab.types import Clock

# The mask of so many new tokens, the last of so many stored ones.
Causal = Callable[[int, int], str | mx.array]
# q [B, H, L, D] over k, v [B, G, S, D], a scale and a mask -> [B, H, L, D]; the new tokens are the last of S.
Attend = Callable[[mx.array, mx.array, mx.array, float, Causal], mx.array]
Find = Callable[[], Sequence[tuple[Verdict, Attend]]]

# MLX's kernel on Metal for a few rows takes so many, and so many times query heads per kv head. The one for
# more rows takes these heads without being told to; for others it writes scores out, two numbers of 16 bits
# for each head, row and stored token.
_FUSED_ROWS, _FUSED, _FUSED_DIMS, _SCORE_BYTES = 8, 32, (64, 80, 128), 2 * 2
_DIM: Final = 256  # of heads that have several ways
# Timed with so many rows, and used from the first number on; an M5 has another kernel for 1,024 or more.
ROWS: Final = {0: 64, 256: 512, 1_024: 1_024, 1_536: 2_048}
# Timed rows, and tokens before them.
CELLS: Final[Sequence[Cell]] = tuple(product(ROWS.values(), TOKENS.values()))
# Compared with so many new and stored tokens.
_SHAPES: Final = ((1, 10, 11), (1, 33, 40), (1, 64, 2000), (1, 130, 130), (1, 257, 700))
# Timed with the 4 kv heads and 16 query heads of a Qwen3.5-9B, or as many as keep written-out scores below.
_GROUPS, _SHARING, _MOST_BYTES = 4, 4, 1 << 29
_causal: Final[Causal] = lambda *_: "causal"  # noqa: E731


def by_mlx(q: mx.array, k: mx.array, v: mx.array, scale: float, causal: Causal, **how: Any) -> mx.array:
    """MLX chooses a kernel, or writes the scores out; `how` may force a kernel."""
    mask = causal(q.shape[2], k.shape[2])
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask, **how)


def in_pieces(q: mx.array, k: mx.array, v: mx.array, scale: float, causal: Causal, *, size: int) -> mx.array:
    """By MLX in calls of at most `size` rows."""
    new, outs = q.shape[2], list[mx.array]()
    for first in range(0, new, size):
        end = min(first + size, new)
        seen = k.shape[2] - new + end
        outs.append(by_mlx(q[:, :, first:end], k[:, :, :seen], v[:, :, :seen], scale, causal))
    return mx.concatenate(outs, axis=2)


WAYS: Final[Mapping[str, Attend]] = {
    "MLX's choice": by_mlx,
    "a fused kernel": partial(by_mlx, force_fused=True),
    "pieces of 128 rows": partial(in_pieces, size=128),
}


class ChunkWays:
    """Which way each chunk takes, and what it needs of memory.

    Heads of 256 numbers have several; they are tested when somebody first asks.
    """

    def __init__(self, find: Find = list) -> None:
        """`find` returns what was tested.

        Sets `most`, bytes that attention of a step may take, to any number; `has_few_rows`: MLX's kernel for
        a few rows is Metal's.
        """
        self._find, self.most, self.has_few_rows = cache(find), math.inf, False

    def chosen(self, q: mx.array, k: mx.array) -> Attend:
        """The fastest right way that needs at most `most`, or the one that needs least."""
        (_, heads, rows, dim), (groups, stored) = q.shape, k.shape[1:3]
        # A draft's few rows are cut for the kernel of a few rows.
        if self.has_few_rows and rows <= _FUSED_ROWS + (dim not in _FUSED_DIMS):
            return partial(in_pieces, size=min(_FUSED_ROWS, max(1, _FUSED // (heads // groups))))
        tried = self._tried(heads, dim, rows, stored)
        return next((way for need, way in tried if need <= self.most), min(tried, key=itemgetter(0))[1])

    def needs(self, heads: int, dim: int, rows: int, stored: int) -> list[float]:
        """Bytes that a chunk takes beyond its results, by each right way, of the fastest one first."""
        return [need for need, _ in self._tried(heads, dim, rows, stored)]

    def _tried(self, heads: int, dim: int, rows: int, stored: int) -> list[tuple[float, Attend]]:
        cell = timed_for(ROWS, rows), timed_for(TOKENS, max(0, stored - rows))
        found, at = self._find() if dim == _DIM else (), CELLS.index(cell)
        right = [(each.ratios[at], each.needs[at], way) for each, way in found if each.is_right]
        scores = heads * stored * max(1, rows / cell[0])
        ways = [(need * scores, way) for _, need, way in sorted(right, key=itemgetter(0))]
        written = 0 if dim in _FUSED_DIMS else _SCORE_BYTES * heads * rows * stored
        return ways or [(written, by_mlx)]


def judge_chunks(subject: str, way: Attend, clock: Clock) -> Verdict:
    """The verdict on a way; it needs so many bytes for each head and stored token, with a cell's rows."""
    base = "" if way is by_mlx else "MLX's choice, rows x tokens before"
    return judged(subject, wrong_shapes(way), CELLS, partial(_measured, way, clock), base)


def wrong_shapes(way: Attend) -> Iterator[str]:
    """The shapes, in words, with a wrong result."""
    sizes = [*product(((8, 1, _DIM), (12, 3, _DIM)), _SHAPES), *fused_checks.LONG]
    cases = fused_checks.attention_cases(sizes, lambda q, k, v, scale, _: way(q, k, v, scale, _causal))
    return fused_checks.wrong_shapes(cases)


def timed_shape(rows: int, before: int) -> tuple[int, int, int, int]:
    """Rows, tokens before them, kv heads and layers with which a cell is timed."""
    scores = _SHARING * rows * (before + rows) * _SCORE_BYTES
    groups = max(1, min(_GROUPS, _MOST_BYTES // scores))
    return rows, before, groups, max(1, min(LAYERS, _MOST_BYTES // (scores * groups)))


def _measured(way: Attend, clock: Clock, cell: Cell) -> tuple[float, float]:
    rows, before, groups, layers = timed_shape(*cell)
    heads, stored = groups * _SHARING, before + rows
    shapes = ((heads, rows), (groups, stored), (groups, stored))
    query, k, v = (fused_checks.draw(i, (1, *shape, _DIM), mx.bfloat16) for i, shape in enumerate(shapes))
    mx.eval(query, k, v)

    def run(attend: Attend) -> None:
        out = query
        for _ in range(layers):
            out = attend(out, k, v, _DIM**-0.5, _causal)
        mx.eval(out)

    used = mx.get_active_memory()
    mx.reset_peak_memory()
    run(way)
    # Two results are there anyway, of a layer and of the one before it.
    need = max(0, mx.get_peak_memory() - used - 2 * query.nbytes) / (heads * stored)
    return (
        1.0 if way is by_mlx else compared([partial(partial, run, a) for a in (by_mlx, way)], clock)
    ), need
