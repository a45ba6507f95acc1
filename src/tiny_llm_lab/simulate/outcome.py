"""The result of a simulation: latencies, goodput and utilisation."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tiny_llm_lab.metrics import weighted_percentile

from .stats import FinishedRequest, RunStats


@dataclass(frozen=True)
class Slo:
    """A request is inside the SLO when its TTFT is at most `ttft_s` and its gaps are at most `itl_s`.

    One late gap in a hundred is allowed, as in a p99 of the request's own gaps: below a hundred gaps, none.
    """

    itl_s: float
    ttft_s: float

    def holds(self, request: FinishedRequest) -> bool:
        allowed = (request.num_output_tokens - 1) // 100
        return request.ttft_s <= self.ttft_s and request.num_late_gaps <= allowed


@dataclass(frozen=True)
class Percentiles:
    """Nearest-rank percentiles in seconds."""

    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True)
class BatchOutcome:
    """Throughput of a run's batch-class requests; they have no latency targets."""

    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    total_s: float  # from the first arrival to the last token, interactive requests included
    output_tokens_per_s: float
    num_preemptions: int


@dataclass(frozen=True)
class Outcome:
    """One simulated run. TTFT, ITL (all gaps of all requests), TPOT and E2E as in `metrics`.

    Only utilisation, num_steps and tokens_per_step count batch-class requests; the rest is interactive.
    """

    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    total_s: float  # from the first arrival to the last token
    ttft: Percentiles
    itl: Percentiles | None
    tpot: Percentiles | None
    e2e: Percentiles
    requests_per_s: float
    goodput: float  # requests per second inside both SLOs
    attainment: float  # share of the requests inside both SLOs
    output_tokens_per_s: float
    utilisation: float  # share of the time that a replica was computing, mean over the replicas
    num_steps: int
    tokens_per_step: float
    num_preemptions: int
    batch: BatchOutcome | None = None  # None without batch-class requests

    def meets(self, slo: Slo) -> bool:
        """Whether p99 ITL and p99 TTFT are inside the SLO."""
        return self.ttft.p99_s <= slo.ttft_s and (self.itl is None or self.itl.p99_s <= slo.itl_s)


def outcome(stats: RunStats, slo: Slo, num_replicas: int) -> Outcome:
    """The numbers of a run in which at least one interactive request finished."""
    requests = [each for each in stats.finished if each.priority_class == "interactive"]
    total_s = _span_s(requests)
    num_good = sum(slo.holds(each) for each in requests)
    num_output_tokens = sum(each.num_output_tokens for each in requests)
    tpots = [each.tpot_s for each in requests if each.tpot_s is not None]
    return Outcome(
        num_requests=len(requests),
        num_prompt_tokens=sum(each.num_prompt_tokens for each in requests),
        num_output_tokens=num_output_tokens,
        total_s=total_s,
        ttft=_percentiles(Counter(each.ttft_s for each in requests)),
        itl=_percentiles(stats.gaps) if stats.gaps else None,
        tpot=_percentiles(Counter(tpots)) if tpots else None,
        e2e=_percentiles(Counter(each.e2e_s for each in requests)),
        requests_per_s=len(requests) / total_s,
        goodput=num_good / total_s,
        attainment=num_good / len(requests),
        output_tokens_per_s=num_output_tokens / total_s,
        utilisation=stats.busy_s / (_span_s(stats.finished) * num_replicas),
        num_steps=stats.num_steps,
        tokens_per_step=stats.num_tokens / stats.num_steps,
        num_preemptions=stats.num_preemptions,
        batch=_batch_outcome(stats),
    )


def _batch_outcome(stats: RunStats) -> BatchOutcome | None:
    requests = [each for each in stats.finished if each.priority_class == "batch"]
    if not requests:
        return None
    total_s = _span_s(stats.finished)
    num_output_tokens = sum(each.num_output_tokens for each in requests)
    return BatchOutcome(
        num_requests=len(requests),
        num_prompt_tokens=sum(each.num_prompt_tokens for each in requests),
        num_output_tokens=num_output_tokens,
        total_s=total_s,
        output_tokens_per_s=num_output_tokens / total_s,
        num_preemptions=stats.num_batch_preemptions,
    )


def _span_s(requests: Sequence[FinishedRequest]) -> float:
    """From the first arrival to the last token."""
    return max(each.last_s for each in requests) - min(each.arrival_s for each in requests)


def _percentiles(counts: Mapping[float, int]) -> Percentiles:
    return Percentiles(*(weighted_percentile(counts, percent) for percent in (50, 90, 99, 100)))
