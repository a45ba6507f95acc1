"""Day 2.7: measuring the interleaving."""

import pytest


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
