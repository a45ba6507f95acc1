"""What the latencies of served requests come to. One definition each, for every command.

TTFT runs from arrival to the first token, the wait in the queue included. ITL is every single gap between
two tokens of a request; the gaps of all requests are pooled. TPOT is a request's mean gap,
(E2E - TTFT) / (n - 1): a stall disappears in it, so it never stands in for ITL.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tiny_llm_lab.types import Completion, Timing


@dataclass(frozen=True)
class Spread:
    """A pool of times in seconds: nearest-rank percentiles and the largest."""

    count: int
    p50_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True)
class RunSummary:
    """All requests of one run; a field is None when nothing was there to measure."""

    num_requests: int
    num_failed: int
    num_prompt_tokens: int
    num_output_tokens: int
    total_s: float
    output_tokens_per_s: float | None
    ttft_median_s: float | None
    itl: Spread | None
    tpot_median_s: float | None


def percentile(values: Iterable[float], percent: float) -> float:
    """The nearest-rank percentile: the smallest value that at least `percent` % do not exceed."""
    ordered = sorted(values)
    if not ordered or not 0 < percent <= 100:
        raise ValueError("a percentile needs values and a percent above 0 and at most 100")
    return ordered[math.ceil(percent * len(ordered) / 100) - 1]


def weighted_percentile(counts: Mapping[float, int], percent: float) -> float:
    """`percentile` of a pool in which each value stands `counts[value]` times."""
    total = sum(counts.values())
    if total < 1 or not 0 < percent <= 100:
        raise ValueError("a percentile needs values and a percent above 0 and at most 100")
    rank = math.ceil(percent * total / 100)
    seen = 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= rank:
            return value
    raise AssertionError("the counts add up to their total")


def spread(values: Sequence[float]) -> Spread | None:
    """Percentiles and maximum of `values`; None when there are none."""
    if not values:
        return None
    return Spread(len(values), percentile(values, 50), percentile(values, 99), max(values))


def pooled_itl(timings: Iterable[Timing]) -> list[float]:
    """Every gap of every request in one list."""
    return [gap for timing in timings for gap in timing.itl_s]


def e2e_s(timing: Timing) -> float | None:
    """From arrival to the last token; None without a token."""
    return timing.token_s[-1] - timing.arrival_s if timing.token_s else None


def tpot_s(timing: Timing) -> float | None:
    """Time per output token after the first; None with fewer than two tokens."""
    end_to_end, ttft = e2e_s(timing), timing.ttft_s
    if end_to_end is None or ttft is None or len(timing.token_s) < 2:
        return None
    return (end_to_end - ttft) / (len(timing.token_s) - 1)


def decode_rate(timing: Timing) -> float | None:
    """Tokens per second of one answer once it flows; None with fewer than two tokens."""
    per_token_s = tpot_s(timing)
    return 1 / per_token_s if per_token_s else None


def summarize(completions: Sequence[Completion], total_s: float) -> RunSummary:
    """The numbers of one run that took `total_s`; requests that failed count only as failed."""
    served = [completion for completion in completions if completion.finish_reason != "error"]
    timings = [completion.timing for completion in served]
    num_output_tokens = sum(len(completion.token_ids) for completion in served)
    ttfts = [timing.ttft_s for timing in timings if timing.ttft_s is not None]
    tpots = [tpot for tpot in map(tpot_s, timings) if tpot is not None]
    return RunSummary(
        num_requests=len(completions),
        num_failed=len(completions) - len(served),
        num_prompt_tokens=sum(completion.num_prompt_tokens for completion in served),
        num_output_tokens=num_output_tokens,
        total_s=total_s,
        output_tokens_per_s=num_output_tokens / total_s if total_s > 0 else None,
        ttft_median_s=median(ttfts) if ttfts else None,
        itl=spread(pooled_itl(timings)),
        tpot_median_s=median(tpots) if tpots else None,
    )
