"""The columns and rows of `simulate`'s table."""

from collections.abc import Sequence
from typing import Final

from tiny_llm_lab.commands.tables import KEEP, Column

from .outcome import Outcome, Percentiles, Slo

# The book reads ITL p99 first, then goodput; on a narrow terminal the columns of least priority are left out.
COLUMNS: Final = (
    Column("budget", KEEP),
    Column("rate", 50),
    Column("TTFT\np50 ms", 40),
    Column("TTFT\np99 ms", 70),
    Column("ITL\np50 ms", 60),
    Column("ITL\np99 ms", KEEP),
    Column("ITL\nmax ms", 10),
    Column("TPOT\np50 ms", 9),
    Column("E2E\np99 s", 20),
    Column("SLO", KEEP),
    Column("in\nSLO", 80),
    Column("goodput\nreq/s", KEEP),
    Column("out\ntok/s", 30),
    Column("busy", 8),
    Column("tok/\nstep", 7),
    Column("preempted", 6),
)


def outcome_row(budget: str, rate: float, outcome: Outcome, slo: Slo) -> list[str]:
    """The cells of COLUMNS; "SLO" says whether p99 ITL and p99 TTFT are both inside.

    Only "busy" and "tok/step" count batch-class requests.
    """
    itl = outcome.itl or Percentiles(0, 0, 0, 0)
    return [
        budget,
        f"{rate:.3g}",
        *map(_ms, (outcome.ttft.p50_s, outcome.ttft.p99_s, itl.p50_s, itl.p99_s, itl.max_s)),
        _ms(outcome.tpot.p50_s) if outcome.tpot else "-",
        f"{outcome.e2e.p99_s:.1f}",
        "met" if outcome.meets(slo) else "missed",
        f"{outcome.attainment:.1%}",
        f"{outcome.goodput:.3f}",
        f"{outcome.output_tokens_per_s:.0f}",
        f"{outcome.utilisation:.0%}",
        f"{outcome.tokens_per_step:.0f}",
        str(outcome.num_preemptions),
    ]


def batch_lines(runs: Sequence[tuple[str, float, Outcome]]) -> list[str]:
    """One line for each run with batch-class requests."""
    return [
        f"batch class, budget {budget}: {batch.num_requests} requests finished, "
        f"{batch.output_tokens_per_s:.0f} out tok/s, {batch.num_preemptions} preempted"
        for budget, _, outcome in runs
        if (batch := outcome.batch)
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"
