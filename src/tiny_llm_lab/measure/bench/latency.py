"""The metrics of runs under load, by name, and how tables show them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from tiny_llm_lab.measure.bench.report import Column, Metrics
from tiny_llm_lab.measure.bench.run import Run
from tiny_llm_lab.runtime.metrics import percentile, pooled_itl
from tiny_llm_lab.types import Timing

_COLUMNS: Final = (
    Column("total_s", "total s", ".2f"),
    Column("output_tokens_per_s", "out tok/s"),
    Column("computed_per_useful", "computed/useful", ".2f"),
    Column("ttft_p50_s", "TTFT p50 ms", ".1f", 1e3),
    Column("ttft_p99_s", "TTFT p99 ms", ".1f", 1e3),
    Column("ttft_short_s", "TTFT short ms", ".0f", 1e3),
    Column("ttft_long_s", "TTFT long ms", ".0f", 1e3),
    Column("itl_p50_s", "ITL p50 ms", ".1f", 1e3),
    Column("itl_p99_s", "ITL p99 ms", ".1f", 1e3),
    Column("itl_max_s", "ITL max ms", ".1f", 1e3),
    Column("itl_p99_over_p50", "p99/p50"),
    Column("peak_bytes", "peak MB", ".1f", 1e-6),
)
TTFT: Final = ("ttft_p50_s", "ttft_p99_s")
ITL: Final = ("itl_p50_s", "itl_p99_s", "itl_max_s", "itl_p99_over_p50")


def columns(keys: Iterable[str], has_spread: bool = False) -> list[Column]:
    """The columns of these metrics, in the order of `keys`."""
    known: Mapping[str, Column] = {each.key: each for each in _COLUMNS}
    return [replace(known[key], has_spread=has_spread) for key in keys]


def latencies(timings: Sequence[Timing]) -> dict[str, float | None]:
    """TTFT and pooled ITL of requests that all have a token."""
    ttfts = ttfts_of(timings)
    both = zip(TTFT, (percentile(ttfts, 50), percentile(ttfts, 99)), strict=True)
    return dict(both) | itl_metrics(pooled_itl(timings))


def itl_metrics(gaps: Sequence[float]) -> dict[str, float | None]:
    """Percentiles of gaps; None when there are none, as with answers of one token."""
    if not gaps:
        return dict.fromkeys(ITL)
    p50_s, p99_s = percentile(gaps, 50), percentile(gaps, 99)
    ratio = p99_s / p50_s if p50_s else None
    return dict(zip(ITL, (p50_s, p99_s, max(gaps), ratio), strict=True))


def ttfts_of(timings: Iterable[Timing]) -> list[float]:
    """The times to the first token of those that have one."""
    return [timing.ttft_s for timing in timings if timing.ttft_s is not None]


def victim_itl(run: Run) -> list[float]:
    """Every gap of every request that was decoding while a long prompt was in prefill."""
    return pooled_itl(run.timings[idx] for idx in run.victims())


def contention(run: Run) -> Metrics:
    """What long prompts do to a run: ITL of the requests that decode meanwhile, TTFT by kind, and work."""
    computed = run.num_computed_tokens
    # All but each answer's last token has to be computed.
    useful = sum(request.num_tokens - 1 for request in run.requests)
    return {
        "total_s": run.total_s,
        "output_tokens_per_s": run.output_tokens_per_s,
        "ttft_short_s": median(ttfts_of(run.of_kind("late"))),
        "ttft_long_s": median(ttfts_of(run.of_kind("long"))),
        **itl_metrics(victim_itl(run)),
        "computed_per_useful": None if computed is None else computed / useful,
        "peak_bytes": run.peak_bytes,
    }
