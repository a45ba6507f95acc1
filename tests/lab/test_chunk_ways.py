"""Chunks with heads of 256 on a GPU that is only claimed: which way each takes, and what the plan counts."""

import math
from dataclasses import replace

import mlx.core as mx
import pytest
from tests.helpers.paging import Requests
from tests.helpers.some_gpu import REF, attended
from tests.helpers.tolerance import F32, assert_close
from tests.lab.test_memory_plan import GIB, Queue, Text, planned

from tiny_llm_lab.measure.fit.models import claimed_mac
from tiny_llm_lab.runtime.native.device import chunk_ways, fused_checks
from tiny_llm_lab.runtime.native.device.chunk_ways import CELLS, WAYS, ChunkWays, by_mlx, in_pieces
from tiny_llm_lab.runtime.native.device.ladder import timed_for
from tiny_llm_lab.runtime.native.device.verdict import Verdict
from tiny_llm_lab.runtime.native.runtime import Runtime
from tiny_llm_lab.serving.memory_plan import ChunkBound, plan_memory

JUDGE, SHAPE, SHORTER = chunk_ways.judge_chunks, chunk_ways.timed_shape, 64


@pytest.fixture
def judging(gpu, sound, monkeypatch):
    """The real self-test, with 64 times fewer rows and tokens; a call of MLX's attention takes a second."""
    monkeypatch.setattr(chunk_ways, "judge_chunks", JUDGE)
    shape = lambda *cell: (*(each // SHORTER for each in cell), 1, SHAPE(*cell)[-1])  # noqa: E731
    monkeypatch.setattr(chunk_ways, "timed_shape", shape)
    monkeypatch.setattr(chunk_ways, "_SHAPES", ((1, 10, 11), (1, 33, 40)))
    monkeypatch.setattr(fused_checks, "LONG", [((4, 1, 256), (1, 64, 70))])
    return gpu


LARGE, LONG = [cell for cell in CELLS if cell[0] > 999], [cell for cell in CELLS if cell[1] > 4000]
# Seconds of a way where MLX's choice takes one, the rows with which it is wrong, and the cells that take it.
PLANTED = {
    "faster": (lambda rows, before: 0.5, 0, list(CELLS)),
    "slower": (lambda rows, before: 2.0, 0, []),
    "as fast": (lambda rows, before: 1.0, 0, []),
    "fast and wrong": (lambda rows, before: 0.1, 33, []),
    "faster from 1,024 rows on": (lambda rows, before: 0.5 if rows > 999 else 2.0, 0, LARGE),
    "faster after long texts": (lambda rows, before: 1500 / (before + 1), 0, LONG),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_chunk_takes_the_fastest_way_that_is_right(name, judging, llm, monkeypatch):
    """In an engine's pages and in the cache of one request."""
    seconds, wrong, cells = PLANTED[name]

    def planted(q, k, v, scale, causal):
        judging.clock.now += seconds(q.shape[2] * SHORTER, (k.shape[2] - q.shape[2]) * SHORTER) - 1
        return by_mlx(q, k, v, scale, causal) * (1.1 if q.shape[2] == wrong else 1)

    monkeypatch.setattr(chunk_ways, "WAYS", {"MLX's choice": by_mlx, "planted": planted, "raising": None})
    ops = Runtime(judging.clock).kernels(REF, {})
    for rows, before in CELLS:
        q, k = mx.zeros((1, 8, rows, 256)), mx.zeros((1, 2, before + rows, 256))
        assert ops.chunks.chosen(q, k) is (planted if (rows, before) in cells else by_mlx), (rows, before)
    step, now = Requests(llm, [40, 12], [20, 12], 8, H=4, G=1, D=256), judging.clock.now
    assert_close(attended(ops, step), step.want(), F32)
    x = mx.ones((1, 4, 30, 256))
    assert_close(ops.attention(x, x[:, :1], x[:, :1], [30], 1 / 16), mx.ones((1, 30, 1024)), F32)
    of_each = 1 if (64, 512) not in cells else 1 + seconds(20 * SHORTER, 20 * SHORTER) - 1
    assert judging.clock.now - now == pytest.approx(3 * of_each), "three chunks"


def test_the_verdicts_on_this_build(judging, monkeypatch, capfd):
    """A CPU has no fused kernel, so it isn't used; what is written out is measured."""
    whole, fused, pieces = Runtime(judging.clock).verdicts(REF)[-3:]
    assert (whole.is_right, fused.is_right, pieces.is_right) == (True, False, True)
    assert "fails ([scaled_dot_product_attention] force_fused=True but no fused kernel" in fused.says
    assert "right; its time relative to MLX's choice, rows x tokens before: 1.00 with 64 x 512" in pieces.says
    assert capfd.readouterr().err.count("testing attention of chunks") == 1
    monkeypatch.setattr(chunk_ways, "timed_shape", lambda *cell: (256, 1792, 1, 1))
    ratio, need = chunk_ways._measured(by_mlx, judging.clock, CELLS[0])
    assert ratio == 1 and 2 * 256 <= need < 8 * 256, "one or a few numbers of 16 bits for each row"


def test_real_ways_are_right_and_one_that_sees_a_later_token_is_not(gpu):
    assert [*chunk_ways.wrong_shapes(by_mlx), *chunk_ways.wrong_shapes(WAYS["pieces of 128 rows"])] == []

    def wrong(q, k, v, scale, causal):
        return in_pieces(q, k, v, scale, lambda new, stored: "causal" if new < 100 else None, size=128)

    assert "of 130 new tokens, 130 stored, H, G, D = 8, 1, 256" in next(chunk_ways.wrong_shapes(wrong))


@pytest.mark.parametrize("cell", CELLS)
def test_what_is_timed_stays_below_a_gigabyte(cell):
    rows, before, groups, layers = SHAPE(*cell)
    assert (rows, before) == cell and 0 < layers * 4 * groups * rows * (before + rows) * 4 < 1_000_000_000
    assert timed_for(chunk_ways.ROWS, rows) == rows


def ways(*tried):
    """Each: its time relative to MLX's choice, bytes of a head and stored token with 512 rows, and itself."""
    needs = [tuple(need * rows / 512 for rows, _ in CELLS) for _, need, _ in tried]
    found = [
        (Verdict("", True, "", (each[0],) * 12, need), each[2])
        for each, need in zip(tried, needs, strict=True)
    ]
    return ChunkWays(lambda: found)


def test_what_does_not_fit_takes_the_way_that_needs_least():
    q, k = mx.zeros((1, 16, 512, 256)), mx.zeros((1, 4, 33_000, 256))
    chunks = ways((1.0, 2048, "whole"), (1.2, 512, "pieces"), (1.5, 0, "fused"))
    wanted = {math.inf: "whole", 1.1e9: "whole", 1.0e9: "pieces", 2e8: "fused", 0: "fused"}
    for chunks.most, want in wanted.items():
        assert chunks.chosen(q, k) == want, chunks.most
    assert chunks.needs(16, 256, 512, 1000) == [2048 * 16_000, 512 * 16_000, 0]
    assert chunks.needs(16, 256, 1000, 2000)[0] == 2048 * 32_000 * 1000 / 512, "more rows than were timed"
    assert chunks.needs(16, 128, 512, 1000) == [0], "MLX's kernel of 128 dimensions keeps none"
    assert chunks.needs(16, 96, 512, 1000) == [4 * 512 * 16_000], "not tested, so written out"


def test_where_a_fused_way_is_right_no_step_is_cut():
    def served(chunks):
        asked = replace(planned("qwen3.5-9b", length=131_072), chunks=chunks)
        plan = plan_memory(asked, claimed_mac(16 * GIB))
        queue = Queue([Text(131_072, 120_000)], [])
        return plan, ChunkBound(plan, asked, None).token_budget(0.0, queue, lambda _: 0.0)

    known, rows = served(ways((1.0, 2048, "whole")))
    assert (known, rows) == served(ChunkWays()) and rows < 200, "as before anything was tested"
    both, rows = served(ways((1.0, 2048, "whole"), (1.5, 0, "fused")))
    assert rows == 512 and both.scores == known.scores, "the faster way, as far as it fits"
    fused, rows = served(ways((1.0, 2048, "whole"), (0.8, 0, "fused")))
    assert rows == 512 and fused.scores == 0 and fused.room > known.room
