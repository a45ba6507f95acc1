"""The latencies of served requests, with one definition of each for every command.

TTFT runs from arrival to the first token, the wait in the queue included. ITL is every single gap between
two times at which tokens of a request came; the gaps of all requests are pooled. Tokens of one read of a
socket, or of one step in this process, have one time and no gap between them. TPOT is the mean time of a
request's tokens, (E2E - TTFT) / (n - 1): a stall disappears in it, so we never use it in place of ITL.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from tiny_llm_lab.types import Completion, Timing


@dataclass(frozen=True)
class Spread:
    """A pool of times in seconds: nearest-rank percentiles and the largest."""

    count: int
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True)
class Slo:
    """A request is inside the SLO when its TTFT is at most `ttft_s` and its gaps are at most `itl_s`.

    One late gap in a hundred is allowed, as in a p99 of the request's own gaps: below a hundred gaps, none.
    """

    itl_s: float
    ttft_s: float

    def holds(self, timing: Timing) -> bool:
        """Whether a request with at least one token is inside."""
        gaps = timing.itl_s
        num_late = sum(gap > self.itl_s for gap in gaps)
        return timing.token_s[0] - timing.arrival_s <= self.ttft_s and num_late <= len(gaps) // 100


@dataclass(frozen=True)
class RunSummary:
    """All requests of one run; a field is None if there was nothing to measure."""

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
        raise ValueError("a percentile needs at least one value, and a percent above 0 and at most 100")
    return ordered[math.ceil(percent * len(ordered) / 100) - 1]


def spread(values: Iterable[float | None]) -> Spread | None:
    """Percentiles and maximum of `values`, without None; None if no value is left."""
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return None
    return Spread(len(ordered), *(percentile(ordered, percent) for percent in (50, 90, 99, 100)))


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


def worst_slowdown(served: Iterable[tuple[Timing, float]]) -> float:
    """How unfair a schedule is: the largest E2E of a request as a multiple of its time alone, in seconds.

    Without a token there is no slowdown. Raises ValueError if no request has one.
    """
    return max(e2e / alone_s for timing, alone_s in served if (e2e := e2e_s(timing)) is not None)


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
