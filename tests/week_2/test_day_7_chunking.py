"""Day 2.7: where a prompt is cut, how large a chunk is, its mask, and metrics."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.phases import UNCHUNKED
from tests.helpers.tolerance import EXACT, F32, assert_close, rounding
from tests.helpers.toy import random_array

# The task of each test that names no other.
pytestmark = pytest.mark.task("2.7.5")

# Where a prompt is cut


def sizes(spans):
    return [end - start for start, end in spans]


@pytest.mark.task("2.7.1")
@pytest.mark.parametrize(
    ("prompt_len", "step", "want"),
    [
        (10, 4, [(0, 4), (4, 8), (8, 10)]),
        (1, 1, [(0, 1)]),
        (128, 128, [(0, 128)]),
        (129, 128, [(0, 128), (128, 129)]),
        (500, UNCHUNKED, [(0, 500)]),
    ],
)
def test_chunk_spans(llm, prompt_len, step, want):
    assert list(llm.chunk_spans(prompt_len, step)) == want


@pytest.mark.task("2.7.1")
def test_chunk_spans_have_no_gaps(llm):
    for prompt_len in range(1, 40):
        for step in range(1, 45):
            spans = list(llm.chunk_spans(prompt_len, step))
            assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])], (prompt_len, step)
            assert spans[-1][1] == prompt_len
            assert all(size == step for size in sizes(spans)[:-1])
            assert 1 <= sizes(spans)[-1] <= step


@pytest.mark.task("2.7.1")
def test_chunk_spans_go_on_from_any_token(llm):
    assert list(llm.chunk_spans(10, 4, 4)) == [(4, 8), (8, 10)]
    assert next(llm.chunk_spans(10, 4, 5)) == (5, 9)
    assert list(llm.chunk_spans(10, 4, 9)) == [(9, 10)]


@pytest.mark.task("2.7.1")
@pytest.mark.parametrize(
    ("prompt_len", "step", "start"), [(0, 4, 0), (-1, 4, 0), (4, 0, 0), (4, -1, 0), (4, 2, 4), (4, 2, -1)]
)
def test_chunk_spans_rejects_nothing_to_cut(llm, prompt_len, step, start):
    try:
        spans = llm.chunk_spans(prompt_len, step, start)
    except ValueError:
        return
    try:
        found = next(spans, None)
    except ValueError:
        found = "a ValueError: a function with `yield` checks nothing before its first value is asked for"
    pytest.fail(f"the call raised no ValueError; asked for the first chunk it gave {found}", pytrace=False)


# The mask of a chunk


@pytest.mark.task("2.7.2")
def test_chunked_prefill_mask_of_three_tokens_after_five(llm):
    I = -np.inf  # noqa: E741
    want = [[0, 0, 0, 0, 0, 0, I, I], [0, 0, 0, 0, 0, 0, 0, I], [0, 0, 0, 0, 0, 0, 0, 0]]
    assert_close(llm.chunked_attention_mask(5, 3, 8), want, EXACT, legend="[L, S]", dtype=mx.float32)
    # What comes after the chunk does not make the mask wider.
    assert_close(llm.chunked_attention_mask(5, 3, 100), want, EXACT, legend="[L, S]")


@pytest.mark.task("2.7.2")
@pytest.mark.parametrize(("start", "size"), [(0, 1), (0, 9), (5, 3), (64, 65)])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_chunked_prefill_mask_equals_causal_in_mlx(llm, start, size, dtype):
    end = start + size
    mask = llm.chunked_attention_mask(start, size, end, dtype)
    assert mask.dtype == dtype
    q = random_array(1, 1, 4, size, 16, dtype=dtype)
    k, v = (random_array(2 + i, 1, 2, end, 16, dtype=dtype) for i in range(2))
    got = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.25, mask=mask)
    want = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.25, mask="causal")
    assert_close(got, want, F32 if dtype == mx.float32 else rounding(dtype, 2))


@pytest.mark.task("2.7.2")
@pytest.mark.parametrize(
    ("start", "size", "total"), [(-1, 2, 8), (0, 0, 8), (3, -1, 8), (6, 3, 8), (8, 1, 8)]
)
def test_chunked_prefill_mask_rejects_what_is_no_chunk(llm, start, size, total):
    with pytest.raises(ValueError):
        llm.chunked_attention_mask(start, size, total)


# Choosing a chunk size


PLENTY = 10**9


@pytest.mark.parametrize(
    ("sequence_length", "decodes", "want"),
    [
        (100, 0, 128),
        (2048, 0, 128),
        (2049, 0, 256),
        (30_000, 3, 256),
        (100, 3, 128),
        (30_000, 4, 64),
        (100, 4, 64),  # 80 % of five slots: the fifth belongs to the prompt in prefill
    ],
)
def test_chunk_size_by_rule_of_thumb(llm, sequence_length, decodes, want):
    assert llm.select_optimal_chunk_size(sequence_length, PLENTY, decodes) == want


@pytest.mark.parametrize(
    ("batch_size", "decodes", "want"),
    [(10, 7, 128), (10, 8, 64), (1, 0, 128), (1, 1, 64), (32, 25, 128), (32, 26, 64)],
)
def test_chunk_size_depends_on_the_share_of_slots(llm, batch_size, decodes, want):
    assert llm.select_optimal_chunk_size(100, PLENTY, decodes, batch_size=batch_size) == want


@pytest.mark.parametrize(
    ("memory", "bytes_per_token", "want"),
    [(256_000, 1000, 256), (255_999, 1000, 255), (100_000, 1000, 100), (1000, 1000, 1), (50, 1, 50)],
)
def test_chunk_size_fits_into_memory(llm, memory, bytes_per_token, want):
    got = llm.select_optimal_chunk_size(4000, memory, 0, bytes_per_token=bytes_per_token)
    assert got == want
    busy = llm.select_optimal_chunk_size(4000, memory, 5, bytes_per_token=bytes_per_token)
    assert busy == min(want, 64)


@pytest.mark.parametrize("memory", [0, 999, -5])
def test_chunk_size_without_memory_for_one_token(llm, memory):
    with pytest.raises(ValueError):
        llm.select_optimal_chunk_size(100, memory, 0, bytes_per_token=1000)


def chunker(llm, *chunks, target=0.05):
    adaptive = llm.AdaptiveChunker(target)
    for size, seconds in chunks:
        adaptive.record_chunk(size, seconds)
    return adaptive


@pytest.mark.parametrize("base", [1, 16, 128, 2048])
def test_adaptive_chunker_starts_with_the_base(llm, base):
    assert llm.AdaptiveChunker().select_chunk_size(base, 0.0) == base
    assert llm.AdaptiveChunker().select_chunk_size(base, 0.79) == base


@pytest.mark.parametrize(
    ("base", "want"), [(256, 128), (128, 64), (65, 32), (64, 32), (40, 32), (32, 32), (16, 16), (1, 1)]
)
@pytest.mark.parametrize("chunks", [[], [(128, 0.001)]])
def test_adaptive_chunker_halves_under_pressure(llm, base, want, chunks):
    adaptive = chunker(llm, *chunks)
    assert adaptive.select_chunk_size(base, 0.8) == want
    assert adaptive.select_chunk_size(base, 1.0) == want


@pytest.mark.parametrize(
    ("base", "want"), [(16, 32), (128, 256), (256, 512), (300, 512), (512, 512), (2048, 2048)]
)
@pytest.mark.parametrize("pressure", [0.0, 0.79])
def test_adaptive_chunker_doubles_when_chunks_are_fast(llm, base, want, pressure):
    assert chunker(llm, (128, 1e-6)).select_chunk_size(base, pressure) == want


def test_adaptive_chunker_averages_time_per_token(llm):
    # 640 tokens in 0.1 s: 256 take 0.04 s. The mean of the two rates would say 0.132 s.
    chosen = chunker(llm, (600, 0.06), (40, 0.04)).select_chunk_size(128, 0.0)
    assert chosen == 256, "640 tokens took 0.1 s, so 256 take 0.04 s, below the target of 0.05 s"
    chosen = chunker(llm, (600, 0.06), (40, 0.07)).select_chunk_size(128, 0.0)
    assert chosen == 128, "640 tokens took 0.13 s, so 256 take 0.052 s, above the target of 0.05 s"


def test_adaptive_chunker_has_a_target(llm):
    assert chunker(llm, (128, 0.1), target=0.3).select_chunk_size(128, 0.0) == 256
    assert chunker(llm, (128, 0.01), target=0.015).select_chunk_size(128, 0.0) == 128


def test_adaptive_chunker_remembers_sixteen_chunks(llm):
    slow, fast = (128, 1.0), (128, 0.001)
    assert chunker(llm, slow, *[fast] * 15).select_chunk_size(128, 0.0) == 128
    assert chunker(llm, slow, *[fast] * 16).select_chunk_size(128, 0.0) == 256


@pytest.mark.parametrize("pressure", [-0.1, 1.1, 5])
def test_adaptive_chunker_rejects_a_pressure_that_is_no_share(llm, pressure):
    with pytest.raises(ValueError):
        llm.AdaptiveChunker().select_chunk_size(128, pressure)


# Measuring the interleaving


@pytest.mark.task("2.7.6")
def test_chunked_prefill_metrics_start_empty(llm):
    metrics = llm.ChunkedPrefillMetrics()
    counts = (
        metrics.prefill_chunks_processed,
        metrics.prefill_tokens_processed,
        metrics.decode_requests_served,
    )
    assert counts == (0, 0, 0)
    assert (metrics.avg_chunk_time, metrics.avg_decode_time) == (None, None)
    assert metrics.prefill_to_decode_ratio is None
    assert metrics.get_interleaving_ratio() == float("inf")


@pytest.mark.task("2.7.6")
def test_chunked_prefill_metrics_count(llm):
    metrics = llm.ChunkedPrefillMetrics()
    for size in (128, 128, 44):
        metrics.record_prefill_chunk(0.1, size)
    assert (metrics.prefill_chunks_processed, metrics.prefill_tokens_processed) == (3, 300)
    assert metrics.get_interleaving_ratio() == float("inf")
    for _ in range(4):
        metrics.record_decode_step(0.01)
    assert metrics.decode_requests_served == 4
    assert metrics.get_interleaving_ratio() == 0.75
    assert metrics.prefill_to_decode_ratio == 75.0


@pytest.mark.task("2.7.6")
def test_chunked_prefill_metrics_average(llm):
    metrics = llm.ChunkedPrefillMetrics()
    metrics.record_prefill_chunk(0.2, 64)
    assert metrics.avg_chunk_time == pytest.approx(0.2)
    metrics.record_prefill_chunk(0.4, 64)
    assert metrics.avg_chunk_time == pytest.approx(0.22)
    metrics.record_prefill_chunk(0.0, 64)
    assert metrics.avg_chunk_time == pytest.approx(0.198)
    metrics.record_decode_step(1.0)
    metrics.record_decode_step(2.0)
    assert metrics.avg_decode_time == pytest.approx(1.1)
    assert metrics.avg_chunk_time == pytest.approx(0.198)


@pytest.mark.task("2.7.6")
def test_chunked_prefill_metrics_take_a_time_of_zero(llm):
    metrics = llm.ChunkedPrefillMetrics()
    metrics.record_prefill_chunk(0.0, 1)
    metrics.record_prefill_chunk(1.0, 1)
    assert metrics.avg_chunk_time == pytest.approx(0.1)


@pytest.mark.task("2.7.6")
def test_chunked_prefill_metrics_without_prefill(llm):
    metrics = llm.ChunkedPrefillMetrics()
    metrics.record_decode_step(0.5)
    assert (metrics.get_interleaving_ratio(), metrics.prefill_to_decode_ratio) == (0.0, 0.0)
