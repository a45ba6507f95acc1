"""What a simulation came to: latencies, goodput and how busy the replicas were."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tiny_llm_lab.metrics import percentile, weighted_percentile

from .ledger import Ledger, Served


@dataclass(frozen=True)
class Slo:
    """A request is served well when its first token comes within `ttft_s` and its gaps are within `itl_s`.

    One late gap in a hundred is allowed, as in a p99 of the request's own gaps: below a hundred gaps, none.
    """

    itl_s: float
    ttft_s: float

    def holds(self, served: Served) -> bool:
        allowed = (served.num_output_tokens - 1) // 100
        return served.ttft_s <= self.ttft_s and served.num_late_gaps <= allowed


@dataclass(frozen=True)
class Percentiles:
    """Nearest-rank percentiles in seconds."""

    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True)
class BatchOutcome:
    """What the batch-class requests of a run came to: nobody waits for them, so what counts is how much."""

    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    total_s: float  # from the first arrival to the last token, interactive requests included
    output_tokens_per_s: float
    num_preemptions: int


@dataclass(frozen=True)
class Outcome:
    """One simulated run. TTFT, ITL (all gaps of all requests), TPOT and E2E as in `metrics`.

    All of it is about interactive requests, but for how busy the replicas were: utilisation and steps are
    those of all requests.
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
    goodput: float  # requests per second that were inside both SLOs
    attainment: float  # their share
    output_tokens_per_s: float
    utilisation: float  # share of the time that a replica was computing, mean over the replicas
    num_steps: int
    tokens_per_step: float
    num_preemptions: int
    batch: BatchOutcome | None = None  # None without batch-class requests

    def meets(self, slo: Slo) -> bool:
        """Whether p99 ITL and p99 TTFT are inside the SLO."""
        return self.ttft.p99_s <= slo.ttft_s and (self.itl is None or self.itl.p99_s <= slo.itl_s)


def outcome(ledger: Ledger, slo: Slo, num_replicas: int) -> Outcome:
    """The numbers of a run in which at least one interactive request was served."""
    served = [each for each in ledger.served if not each.is_batch_class]
    total_s = _span_s(served)
    num_good = sum(slo.holds(each) for each in served)
    num_output_tokens = sum(each.num_output_tokens for each in served)
    tpots = [each.tpot_s for each in served if each.tpot_s is not None]
    return Outcome(
        num_requests=len(served),
        num_prompt_tokens=sum(each.num_prompt_tokens for each in served),
        num_output_tokens=num_output_tokens,
        total_s=total_s,
        ttft=_percentiles(each.ttft_s for each in served),
        itl=_weighted(ledger.gaps) if ledger.gaps else None,
        tpot=_percentiles(tpots) if tpots else None,
        e2e=_percentiles(each.e2e_s for each in served),
        requests_per_s=len(served) / total_s,
        goodput=num_good / total_s,
        attainment=num_good / len(served),
        output_tokens_per_s=num_output_tokens / total_s,
        utilisation=ledger.busy_s / (_span_s(ledger.served) * num_replicas),
        num_steps=ledger.num_steps,
        tokens_per_step=ledger.num_tokens / ledger.num_steps,
        num_preemptions=ledger.num_preemptions,
        batch=_batch_outcome(ledger),
    )


def _batch_outcome(ledger: Ledger) -> BatchOutcome | None:
    served = [each for each in ledger.served if each.is_batch_class]
    if not served:
        return None
    total_s = _span_s(ledger.served)
    num_output_tokens = sum(each.num_output_tokens for each in served)
    return BatchOutcome(
        num_requests=len(served),
        num_prompt_tokens=sum(each.num_prompt_tokens for each in served),
        num_output_tokens=num_output_tokens,
        total_s=total_s,
        output_tokens_per_s=num_output_tokens / total_s,
        num_preemptions=ledger.num_batch_preemptions,
    )


def _span_s(served: Sequence[Served]) -> float:
    """From the first arrival to the last token."""
    return max(each.last_s for each in served) - min(each.arrival_s for each in served)


def _percentiles(values: Iterable[float]) -> Percentiles:
    ordered = sorted(values)
    p50, p90, p99, largest = (percentile(ordered, percent) for percent in (50, 90, 99, 100))
    return Percentiles(p50, p90, p99, largest)


def _weighted(counts: Mapping[float, int]) -> Percentiles:
    p50, p90, p99, largest = (weighted_percentile(counts, percent) for percent in (50, 90, 99, 100))
    return Percentiles(p50, p90, p99, largest)
