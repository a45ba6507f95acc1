"""A run for each threshold: tokens of a step, TTFT in steps and the worst stall, as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median_low
from typing import Final

from tiny_llm_lab.measure.trace.timeline import Timeline
from tiny_llm_lab.runtime.console.tables import KEEP, Column, print_table
from tiny_llm_lab.runtime.metrics import percentile

_PERCENTS: Final = (50, 95, 99, 100)
_TITLES: Final = (
    *(Column(title, KEEP) for title in ("threshold", "cost\np50", "p95", "p99", "max", "mean", "sum")),
    *(Column(title, KEEP) for title in ("TTFT\nmedian", "TTFT\nmax", "worst\nstall")),
    Column("TTFT\nof each", is_left=True),
)


@dataclass(frozen=True)
class SweepRow:
    """A run with one threshold; costs are the tokens of the steps that brought the first request that
    decodes its tokens, percentiles by rank. All are 0 if none decodes."""

    threshold: int
    cost_p50: int
    cost_p95: int
    cost_p99: int
    cost_max: int
    cost_mean: float
    tokens_max: int  # of any step
    tokens_sum: int
    ttft_steps: Mapping[str, int]  # by request, the step that brings the first token included
    worst_stall: int  # most tokens computed between two tokens of one request

    @classmethod
    def of(cls, threshold: int, timeline: Timeline) -> "SweepRow":
        """What a finished run with `threshold` shows."""
        costs = next(filter(None, map(timeline.decode_costs, timeline.requests)), [0])
        p50, p95, p99, most = (int(percentile(costs, percent)) for percent in _PERCENTS)
        totals = timeline.totals
        ttft = {request.name: timeline.ttft_steps(request) for request in timeline.requests}
        tokens = max(totals), sum(totals), ttft, timeline.worst_stall()
        return cls(threshold, p50, p95, p99, most, fmean(costs), *tokens)

    def cells(self) -> list[str]:
        ttft = list(self.ttft_steps.values())
        costs = (self.cost_p50, self.cost_p95, self.cost_p99, self.cost_max, f"{self.cost_mean:.2f}")
        numbers = (*costs, self.tokens_sum, median_low(ttft), max(ttft), self.worst_stall)
        return [str(self.threshold or "off"), *map(str, numbers), " ".join(map(str, ttft))]


def print_sweep(rows: Sequence[SweepRow], title: str) -> None:
    """The table on stdout, and what its columns are."""
    print(f"{title}\n")
    print_table(_TITLES, [row.cells() for row in rows])
    print("\ncost = tokens of the steps that bring the first decode a token · sum = of all steps")
    print("TTFT in steps · stall = tokens between two tokens of a request")


def sweep_json(rows: Sequence[SweepRow]) -> list[dict[str, object]]:
    return [asdict(row) for row in rows]
