"""Latencies of one run as named metrics, and the samples that several runs make."""

from collections.abc import Iterable, Sequence

from tiny_llm_lab.metrics import percentile, pooled_itl
from tiny_llm_lab.types import Timing

from .report import Column

TTFT_COLUMNS = (
    Column("ttft_p50_s", "TTFT p50 ms", ".1f", 1e3),
    Column("ttft_p99_s", "TTFT p99 ms", ".1f", 1e3),
)
ITL_COLUMNS = (
    Column("itl_p50_s", "ITL p50 ms", ".1f", 1e3),
    Column("itl_p99_s", "ITL p99 ms", ".1f", 1e3),
    Column("itl_max_s", "ITL max ms", ".1f", 1e3),
    Column("itl_p99_over_p50", "p99/p50", ".1f"),
)


def latencies(timings: Sequence[Timing]) -> dict[str, float | None]:
    """TTFT and pooled ITL of requests that all have a token."""
    ttfts = ttfts_of(timings)
    return {
        "ttft_p50_s": percentile(ttfts, 50),
        "ttft_p99_s": percentile(ttfts, 99),
        **itl_metrics(pooled_itl(timings)),
    }


def itl_metrics(gaps: Sequence[float]) -> dict[str, float | None]:
    """Percentiles of gaps; None when there are none, as with answers of one token."""
    if not gaps:
        return dict.fromkeys(column.key for column in ITL_COLUMNS)
    p50_s, p99_s = percentile(gaps, 50), percentile(gaps, 99)
    ratio = p99_s / p50_s if p50_s else None
    return {"itl_p50_s": p50_s, "itl_p99_s": p99_s, "itl_max_s": max(gaps), "itl_p99_over_p50": ratio}


def ttfts_of(timings: Iterable[Timing]) -> list[float]:
    """The times to the first token of those that have one."""
    return [timing.ttft_s for timing in timings if timing.ttft_s is not None]
