"""The result of a simulation: latencies, goodput and utilisation."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain

from tiny_llm_lab.measure.simulate.replica import FinishedRequest, ReplicaStats
from tiny_llm_lab.runtime.metrics import Slo, Spread, e2e_s, pooled_itl, spread, tpot_s


@dataclass(frozen=True)
class Throughput:
    """What a run did for the requests of one class."""

    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    total_s: float
    output_tokens_per_s: float
    num_preemptions: int


@dataclass(frozen=True)
class Outcome(Throughput):
    """One simulated run. TTFT, ITL (all gaps of all requests), TPOT and E2E as in `metrics`.

    Only utilisation, num_steps and tokens_per_step count batch-class requests; the rest is interactive.
    """

    ttft: Spread | None
    itl: Spread | None  # None when no request has a second token
    tpot: Spread | None
    e2e: Spread | None
    requests_per_s: float
    goodput: float  # requests per second inside both SLOs
    attainment: float  # share of the requests inside both SLOs
    utilisation: float  # share of the time that a replica was computing, mean over the replicas
    num_steps: int
    tokens_per_step: float
    batch: Throughput | None  # None without batch-class requests, which have no latency targets

    def meets(self, slo: Slo) -> bool:
        """Whether p99 ITL and p99 TTFT are inside the SLO."""
        limits = ((self.ttft, slo.ttft_s), (self.itl, slo.itl_s))
        return all(found is None or found.p99_s <= limit for found, limit in limits)


def outcome(replicas: Sequence[ReplicaStats], slo: Slo) -> Outcome:
    """The numbers of a run in which at least one interactive request finished."""
    finished = list(chain.from_iterable(stats.finished for stats in replicas))
    served = [each for each in finished if each.request.priority_class == "interactive"]
    batch = [each for each in finished if each.request.priority_class == "batch"]
    timings = [each.timing for each in served]
    num_good = sum(map(slo.holds, timings))
    num_steps = sum(stats.num_steps for stats in replicas)
    total_s, busy_s = _span_s(served), sum(stats.busy_s for stats in replicas)
    return Outcome(
        **asdict(_throughput(served, total_s)),
        ttft=spread(timing.ttft_s for timing in timings),
        itl=spread(pooled_itl(timings)),
        tpot=spread(map(tpot_s, timings)),
        e2e=spread(map(e2e_s, timings)),
        requests_per_s=len(served) / total_s,
        goodput=num_good / total_s,
        attainment=num_good / len(served),
        utilisation=busy_s / (_span_s(finished) * len(replicas)),
        num_steps=num_steps,
        tokens_per_step=sum(stats.num_tokens for stats in replicas) / num_steps,
        batch=_throughput(batch, _span_s(finished)) if batch else None,
    )


def _throughput(finished: Sequence[FinishedRequest], total_s: float) -> Throughput:
    num_output_tokens = sum(each.request.num_output_tokens for each in finished)
    return Throughput(
        num_requests=len(finished),
        num_prompt_tokens=sum(each.request.num_prompt_tokens for each in finished),
        num_output_tokens=num_output_tokens,
        total_s=total_s,
        output_tokens_per_s=num_output_tokens / total_s,
        num_preemptions=sum(each.num_preemptions for each in finished),
    )


def _span_s(finished: Sequence[FinishedRequest]) -> float:
    """From the first arrival to the last token."""
    timings = [each.timing for each in finished]
    return max(timing.token_s[-1] for timing in timings) - min(timing.arrival_s for timing in timings)
