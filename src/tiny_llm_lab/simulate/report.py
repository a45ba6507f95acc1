"""Simulated runs for people: one table, a row per setting."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from .outcome import Outcome, Percentiles, Slo

_COLUMNS = (
    "budget", "rate", "TTFT p50 ms", "p99 ms", "ITL p50 ms", "p99 ms", "max ms", "TPOT p50 ms", "E2E p99 s",
    "SLO", "in SLO", "goodput req/s", "out tok/s", "busy", "tok/step", "preempted",
)  # fmt: skip


def outcome_table(rows: Sequence[tuple[str, float, Outcome]], slo: Slo, plain: bool) -> Table:
    """One row per (budget, rate, outcome); "SLO" says whether p99 ITL and p99 TTFT are both inside.

    Of interactive requests only, but for "busy" and "tok/step", which count everybody's tokens.
    """
    table = Table(box=None if plain else box.SIMPLE_HEAD, pad_edge=False)
    for title in _COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    for budget, rate, outcome in rows:
        table.add_row(budget, f"{rate:.3g}", *_numbers(outcome, slo))
    return table


def batch_lines(rows: Sequence[tuple[str, float, Outcome]]) -> list[str]:
    """What became of the batch-class requests, a line per row of the table that had any."""
    return [
        f"batch class, budget {budget}: {batch.num_requests} requests finished, "
        f"{batch.output_tokens_per_s:.0f} out tok/s, {batch.num_preemptions} preempted"
        for budget, _, outcome in rows
        if (batch := outcome.batch)
    ]


def _numbers(outcome: Outcome, slo: Slo) -> list[str]:
    itl = outcome.itl or Percentiles(0, 0, 0, 0)
    return [
        _ms(outcome.ttft.p50_s),
        _ms(outcome.ttft.p99_s),
        _ms(itl.p50_s),
        _ms(itl.p99_s),
        _ms(itl.max_s),
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


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"
