"""`sweep`: token budgets of 256 to 4096, and which one to choose under an ITL SLO."""

from collections.abc import Sequence
from typing import Final

from matplotlib.figure import Figure

from tiny_llm_lab.measure.bench.latency import itl_metrics
from tiny_llm_lab.measure.bench.report import Column, Metrics, Row
from tiny_llm_lab.measure.labs.effect import Kind, claimed, effect_of, every, in_words
from tiny_llm_lab.measure.labs.lab import Lab, LabSetup, Measured, Pace, contention, overlap_problem
from tiny_llm_lab.measure.labs.result import Finding, bars, judged, over_budgets
from tiny_llm_lab.measure.labs.server import Variant
from tiny_llm_lab.measure.load.client import LoadRun, timings
from tiny_llm_lab.runtime.metrics import percentile, pooled_itl

BUDGETS: Final = (256, 512, 1024, 2048, 4096)
_POLICY: Final = "slo"  # a budget for every step, chosen by the engine
_COLUMNS: Final = (
    Column("ttft_p50_s", "TTFT_p50 ms", ".1f", 1e3, has_spread=True),
    Column("itl_p50_s", "ITL_p50 ms", ".2f", 1e3),
    Column("itl_p99_s", "ITL_p99 ms", ".1f", 1e3, has_spread=True),
    Column("itl_p99_over_p50", "ITL_ratio", ".1f"),
    Column("itl_max_s", "ITL_max ms", ".1f", 1e3, has_spread=True),
    Column("output_tokens_per_s", "out tok/s", ".0f", has_spread=True),
)


def fixed(setup: LabSetup) -> list[Variant]:
    """A variant for each budget that is not longer than a request."""
    return [setup.chunked(budget) for budget in BUDGETS if budget <= setup.max_model_len]


def policy(setup: LabSetup, pace: Pace) -> list[Variant]:
    """The engine's own budgets, for the SLO that this pace allows."""
    return [Variant(_POLICY, ("--itl-slo-ms", f"{setup.itl_slo(pace) * 1e3:g}"))]


def metrics(run: LoadRun) -> Metrics:
    """TTFT of long prompts, ITL of the streams, and tokens per second of all."""
    ttfts = [timing.ttft_s or 0.0 for timing in timings(run.of_kind("long"))]
    return itl_metrics(pooled_itl(timings(run.of_kind("stream")))) | {
        "ttft_p50_s": percentile(ttfts, 50),
        "output_tokens_per_s": sum(len(each.token_s) for each in run.records) / run.total_s,
    }


def chosen(rows: Sequence[Row], slo_s: float) -> Row | None:
    """Of the fixed budgets whose ITL p99 is inside the SLO, that with the lowest TTFT; None when none is."""
    meeting = [row for row in rows if row.name != _POLICY and row.median("itl_p99_s") <= slo_s]
    return min(meeting, key=lambda row: row.median("ttft_p50_s"), default=None)


def finding(rows: Sequence[Row], slo_s: float, problem: str | None) -> Finding:
    """The choice, and how the ends of the sweep compare."""
    missing = [row.name for row in rows if not row.is_whole("itl_p99_s")]
    rows = [row for row in rows if row.name not in missing]
    if not any(row.name != _POLICY for row in rows):
        return Finding([], (), problem or "no budget has an ITL in every round: run it again")
    best = chosen(rows, slo_s)
    policy = next((row for row in rows if row.name == _POLICY), None)
    rows = [row for row in rows if row.name != _POLICY]
    least = min(rows, key=lambda row: row.median("itl_p99_s"))
    sentences = [_choice_said(best, least, slo_s)]
    if missing:
        sentences.append(f"Left out, as a round has no ITL: {', '.join(missing)}.")
    if problem or len(rows) < 2:
        return Finding(sentences, (), problem)
    if policy is not None:
        sentences.append(_policy_said(policy, best, slo_s))
    small, large = rows[0], rows[-1]
    itl = effect_of("ITL p99", small, large, "itl_p99_s")
    ttft = effect_of("TTFT p50", small, large, "ttft_p50_s")
    speed = effect_of("throughput", small, large, "output_tokens_per_s")
    sentences += [in_words(itl, ttft, speed), f"{small.name} against {large.name}: {itl}; {ttft}; {speed}."]
    fastest = max(rows, key=lambda row: row.median("output_tokens_per_s"))
    claims = [
        claimed("A smaller chunk lowers ITL p99", itl, "lower"),
        claimed("A smaller chunk raises TTFT", ttft, "higher"),
        claimed("Throughput is stable across budgets", speed, "none"),
        judged(
            "Throughput peaks at 512",
            _beats(rows, "512", "output_tokens_per_s", "higher"),
            f"{fastest.name} has the highest median",
        ),
        judged(
            "4096 is the smoothest",
            _beats(rows, "4096", "itl_p99_s", "lower"),
            f"{least.name} has the lowest ITL p99",
        ),
    ]
    return Finding(sentences, claims)


def _choice_said(best: Row | None, least: Row, slo_s: float) -> str:
    slo = f"an ITL SLO of {slo_s * 1e3:.1f} ms"
    if best is None:
        lowest_ms = least.median("itl_p99_s") * 1e3
        return f"No budget meets {slo}; the lowest ITL p99 is {lowest_ms:.1f} ms, with {least.name}."
    return (
        f"Under {slo} choose {best.name}: its TTFT p50 of {best.median('ttft_p50_s') * 1e3:.1f} ms is "
        f"the lowest of all that meet it, and its ITL p99 is {best.median('itl_p99_s') * 1e3:.1f} ms."
    )


def _beats(rows: Sequence[Row], name: str, key: str, kind: Kind) -> bool | None:
    """Whether the metric of the row `name` is `kind` against each other row; None without that row."""
    best = next((row for row in rows if row.name == name), None)
    if best is None:
        return None
    return every(effect_of(key, best, row, key).is_(kind) for row in rows if row is not best)


def _policy_said(policy: Row, best: Row | None, slo_s: float) -> str:
    itl_s = policy.median("itl_p99_s")
    where = "inside" if itl_s <= slo_s else "outside"
    message = f"If the engine chooses its budgets for that SLO, ITL p99 is {itl_s * 1e3:.1f} ms, {where}"
    ttft = effect_of("its TTFT p50", policy, best, "ttft_p50_s") if best else None
    return f"{message}; against {best.name}, {ttft}." if best else f"{message}."


def draw(measured: Measured, figure: Figure) -> None:
    """ITL p99 and TTFT over the budget, with the SLO; and throughput."""
    left, middle, right = figure.subplots(1, 3)
    rows, slo_s = [row for row in measured.rows if row.is_whole("itl_p99_s")], _slo_s(measured)
    fixed = [row for row in rows if row.name.isdigit()]
    if fixed:
        budgets = [int(row.name) for row in fixed]
        over_budgets(left, "ITL p99", budgets, fixed, "itl_p99_s")
        over_budgets(middle, "TTFT p50 of long prompts", budgets, fixed, "ttft_p50_s")
    else:
        bars(left, "ITL p99", rows, "itl_p99_s")
        bars(middle, "TTFT p50 of long prompts", rows, "ttft_p50_s")
    left.axhline(slo_s * 1e3, linestyle="--", linewidth=1, color="gray")
    left.annotate("SLO", (0.02, slo_s * 1e3), xycoords=("axes fraction", "data"), va="bottom", color="gray")
    bars(right, "throughput", rows, "output_tokens_per_s", 1.0, "tok/s")


def _slo_s(measured: Measured) -> float:
    return measured.setup.itl_slo(measured.pace)


LAB: Final = Lab(
    name="sweep",
    question="Which token budget should you choose?",
    columns=_COLUMNS,
    title="{streams} answers and {num_long} prompts of {long_tokens} tokens; "
    "TTFT is for the long prompts, ITL for the others",
    variants=fixed,
    paced=policy,
    requests=lambda setup, pace, number: contention(setup, pace, setup.sizes.num_long, number),
    metrics=metrics,
    problem=overlap_problem,
    data=lambda m: {"itl_slo_s": _slo_s(m)},
    finding=lambda m: finding(m.rows, _slo_s(m), m.problem),
    draw=draw,
)
