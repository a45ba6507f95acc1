"""Day 2.7: choosing a chunk size."""

import pytest

PLENTY = 10**9


@pytest.mark.task("2.7.5")
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
        (100, 5, 64),
        (30_000, 5, 64),
    ],
)
def test_chunk_size_by_rule_of_thumb(llm, sequence_length, decodes, want):
    assert llm.select_optimal_chunk_size(sequence_length, PLENTY, decodes) == want


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize(
    ("batch_size", "decodes", "want"),
    [(10, 7, 128), (10, 8, 64), (1, 0, 128), (1, 1, 64), (32, 25, 128), (32, 26, 64)],
)
def test_chunk_size_depends_on_the_share_of_slots(llm, batch_size, decodes, want):
    assert llm.select_optimal_chunk_size(100, PLENTY, decodes, batch_size=batch_size) == want


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize(
    ("memory", "bytes_per_token", "want"),
    [(256_000, 1000, 256), (255_999, 1000, 255), (100_000, 1000, 100), (1000, 1000, 1), (50, 1, 50)],
)
def test_chunk_size_fits_into_memory(llm, memory, bytes_per_token, want):
    got = llm.select_optimal_chunk_size(4000, memory, 0, bytes_per_token=bytes_per_token)
    assert got == want
    busy = llm.select_optimal_chunk_size(4000, memory, 5, bytes_per_token=bytes_per_token)
    assert busy == min(want, 64)


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize("memory", [0, 999, -5])
def test_chunk_size_without_memory_for_one_token(llm, memory):
    with pytest.raises(ValueError):
        llm.select_optimal_chunk_size(100, memory, 0, bytes_per_token=1000)


def chunker(llm, *chunks, target=0.05):
    adaptive = llm.AdaptiveChunker(target)
    for size, seconds in chunks:
        adaptive.record_chunk(size, seconds)
    return adaptive


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize("base", [1, 16, 128, 2048])
def test_adaptive_chunker_starts_with_the_base(llm, base):
    assert llm.AdaptiveChunker().select_chunk_size(base, 0.0) == base
    assert llm.AdaptiveChunker().select_chunk_size(base, 0.79) == base


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize(
    ("base", "want"), [(256, 128), (128, 64), (65, 32), (64, 32), (40, 32), (32, 32), (16, 16), (1, 1)]
)
@pytest.mark.parametrize("chunks", [[], [(128, 0.001)]])
def test_adaptive_chunker_halves_under_pressure(llm, base, want, chunks):
    adaptive = chunker(llm, *chunks)
    assert adaptive.select_chunk_size(base, 0.8) == want
    assert adaptive.select_chunk_size(base, 1.0) == want


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize(
    ("base", "want"), [(16, 32), (128, 256), (256, 512), (300, 512), (512, 512), (2048, 2048)]
)
@pytest.mark.parametrize("pressure", [0.0, 0.79])
def test_adaptive_chunker_doubles_when_chunks_are_fast(llm, base, want, pressure):
    assert chunker(llm, (128, 1e-6)).select_chunk_size(base, pressure) == want


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize(
    ("chunk", "want"),
    [
        ((128, 0.024), 256),  # 256 tokens will take 0.048 s
        ((128, 0.026), 128),  # 0.052 s: too long, although the chunk itself was fast enough
        ((64, 0.0124), 256),
        ((512, 0.101), 128),
        ((512, 0.099), 256),  # slower than the target, but far larger than what comes next
    ],
)
def test_adaptive_chunker_predicts_the_doubled_chunk(llm, chunk, want):
    assert chunker(llm, chunk).select_chunk_size(128, 0.5) == want


@pytest.mark.task("2.7.5")
def test_adaptive_chunker_averages_time_per_token(llm):
    # 640 tokens in 0.1 s: 256 take 0.04 s. The mean of the two rates would say 0.132 s.
    chosen = chunker(llm, (600, 0.06), (40, 0.04)).select_chunk_size(128, 0.0)
    assert chosen == 256, "640 tokens took 0.1 s, so 256 take 0.04 s, below the target of 0.05 s"
    chosen = chunker(llm, (600, 0.06), (40, 0.07)).select_chunk_size(128, 0.0)
    assert chosen == 128, "640 tokens took 0.13 s, so 256 take 0.052 s, above the target of 0.05 s"


@pytest.mark.task("2.7.5")
def test_adaptive_chunker_has_a_target(llm):
    assert chunker(llm, (128, 0.1), target=0.3).select_chunk_size(128, 0.0) == 256
    assert chunker(llm, (128, 0.01), target=0.015).select_chunk_size(128, 0.0) == 128


@pytest.mark.task("2.7.5")
def test_adaptive_chunker_remembers_sixteen_chunks(llm):
    slow, fast = (128, 1.0), (128, 0.001)
    assert chunker(llm, slow, *[fast] * 15).select_chunk_size(128, 0.0) == 128
    assert chunker(llm, slow, *[fast] * 16).select_chunk_size(128, 0.0) == 256


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize("pressure", [-0.1, 1.1, 5])
def test_adaptive_chunker_rejects_a_pressure_that_is_no_share(llm, pressure):
    with pytest.raises(ValueError):
        llm.AdaptiveChunker().select_chunk_size(128, pressure)
