"""`itl`: the gaps between tokens over time, without and with chunks."""

from collections.abc import Sequence
from typing import Final

from matplotlib.figure import Figure

from tiny_llm_lab.measure.bench.latency import ITL, columns, itl_metrics
from tiny_llm_lab.measure.bench.report import Metrics, Row
from tiny_llm_lab.measure.ink import PREFILL, color_of
from tiny_llm_lab.measure.labs.effect import by_round, effect_of, setting, within
from tiny_llm_lab.measure.labs.lab import Lab, Measured, contention, overlap_problem
from tiny_llm_lab.measure.labs.result import Finding, gaps_over_time, judged
from tiny_llm_lab.measure.load.client import LoadRun, timings
from tiny_llm_lab.runtime.metrics import pooled_itl, tpot_s
from tiny_llm_lab.types import Timing


def metrics(run: LoadRun) -> Metrics:
    """Pooled ITL of the streams; and the ratio that TPOT, a mean per request, would show instead."""
    streams = timings(run.of_kind("stream"))
    tpots = itl_metrics([value for value in map(tpot_s, streams) if value is not None])
    return itl_metrics(pooled_itl(streams)) | {"tpot_p99_over_p50": tpots["itl_p99_over_p50"]}


def typical(runs: Sequence[LoadRun]) -> LoadRun:
    """The run whose longest gap is the (lower) median."""
    ordered = sorted(runs, key=lambda run: max(pooled_itl(timings(run.of_kind("stream")))))
    return ordered[(len(runs) - 1) // 2]


def finding(rows: Sequence[Row], problem: str | None) -> Finding:
    """The ratio p99 / p50 of each row, and what TPOT hides."""
    sentences = [
        f"{setting(row.name)}, ITL p99 is {row.median('itl_p99_over_p50'):.1f} times p50 and the longest gap "
        f"{row.median('itl_max_s') * 1e3:.1f} ms."
        for row in rows
    ]
    if problem or len(rows) < 2:
        return Finding(sentences, (), problem)
    off, chunked = rows
    peak = effect_of("The longest gap with chunks", chunked, off, "itl_max_s")
    sentences.append(f"{peak}.")
    before, after = (row.median("itl_p99_over_p50") for row in rows)
    gaps_off, gaps_chunked = (row.samples["itl_p99_over_p50"] for row in rows)
    hidden = off.median("tpot_p99_over_p50")
    claims = [
        judged("Without chunks ITL p99 is 5 to 20 times p50", within(gaps_off, 5, 20), f"{before:.1f} times"),
        judged("With chunks the ratio is 2 to 3", within(gaps_chunked, 2, 3), f"{after:.1f}"),
        judged(
            "P99 TPOT can replace the ITL p99",
            within(by_round(off.samples["tpot_p99_over_p50"], gaps_off), 0.8),
            f"TPOT, a request's mean, has p99 / p50 = {hidden:.2f} where the gaps have {before:.1f}",
        ),
    ]
    return Finding(sentences, claims)


def draw(measured: Measured, figure: Figure) -> None:
    """A panel for each variant's typical run on one scale; a long prompt's prefill is shaded."""
    shown = _typical_of(measured)
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, (name, run) in zip(panels, shown.items(), strict=True):
        for record in run.of_kind("long"):
            axes.axvspan(record.send_s, record.token_s[0], color=PREFILL[1], linewidth=0, zorder=0)
        streams: list[Timing] = timings(run.of_kind("stream"))
        longest_ms = max(pooled_itl(streams)) * 1e3
        title = f"{setting(name)}: the longest gap is {longest_ms:.0f} ms"
        gaps_over_time(axes, title, streams, color_of(name))
    panels[0].text(0.02, 0.95, "shaded: a long prompt waits", transform=panels[0].transAxes, fontsize=8)


def _typical_of(measured: Measured) -> dict[str, LoadRun]:
    return {name: typical(each) for name, each in measured.runs.items()}


def _data(measured: Measured) -> dict[str, object]:
    return {
        "series": {
            name: [{"token_s": timing.token_s} for timing in timings(run.of_kind("stream"))]
            for name, run in _typical_of(measured).items()
        }
    }


LAB: Final = Lab(
    name="itl",
    question="When do gaps between tokens become long?",
    columns=columns(ITL, has_spread=True),
    title="{streams} answers, and {num_long} prompts of {long_tokens} tokens",
    requests=lambda setup, pace, number: contention(setup, pace, setup.sizes.num_long, number),
    metrics=metrics,
    problem=overlap_problem,
    data=_data,
    finding=lambda m: finding(m.rows, m.problem),
    draw=draw,
)
