"""`compare`: three configurations under the same traffic."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from tiny_llm_lab.measure.bench.host import cpu_model
from tiny_llm_lab.measure.bench.latency import columns
from tiny_llm_lab.measure.bench.report import Row, Section
from tiny_llm_lab.measure.labs.effect import effect_of, every, within
from tiny_llm_lab.measure.labs.plot import bar_panels
from tiny_llm_lab.measure.labs.result import Finding, LabResult, judged
from tiny_llm_lab.measure.labs.server import Variant
from tiny_llm_lab.measure.labs.setup import LabSetup, rows_of, traffic_metrics
from tiny_llm_lab.measure.labs.workload import rate_for, traffic
from tiny_llm_lab.measure.traffic.lengths import LengthKind

QUESTION: Final = "What do chunks change under ordinary traffic?"
KEYS: Final = (
    "ttft_p50_s",
    "ttft_p99_s",
    "itl_p50_s",
    "itl_p99_s",
    "itl_max_s",
    "itl_p99_over_p50",
    "output_tokens_per_s",
)
PANELS: Final = (
    ("ITL p99", "itl_p99_s", 1e3, "ms"),
    ("TTFT p50", "ttft_p50_s", 1e3, "ms"),
    ("output tokens per second", "output_tokens_per_s", 1.0, "tok/s"),
)


def run(setup: LabSetup) -> LabResult:
    variants, skipped = setup.usable([setup.whole, Variant("default"), setup.chunked(512)])
    pace = setup.pace(variants[0])
    # Like conversations: many short prompts, some very long ones.
    kinds = (LengthKind(1.0, setup.max_model_len // 8, 1.0, 48, 0.5),)
    rate, count = rate_for(setup, pace, kinds), setup.sizes.num_requests
    rows = rows_of(
        setup.measure(variants, lambda number: traffic(setup, kinds, rate, number)), traffic_metrics
    )
    prompt = kinds[0].prompt_median
    title = f"{count} requests, Poisson at {rate:.1f} a second, prompts of {prompt} tokens in the median"
    section = Section("compare", title, columns(KEYS, has_spread=True), rows, notes=[f"On {cpu_model()}."])
    draw = partial(bar_panels, rows=rows, panels=PANELS)
    return LabResult("compare", QUESTION, section, finding(rows), draw, skipped)


def finding(rows: Sequence[Row]) -> Finding:
    """The smallest chunks against none."""
    said = [
        f"ITL p99 is {row.median('itl_p99_over_p50'):.1f} times p50 with {row.name}"
        f"{'' if row is rows[-1] else ';'}"
        for row in rows
    ]
    conclusion = [f"{' '.join(said)}."]
    if len(rows) < 2:
        return Finding(conclusion)
    off, chunked = rows[0], rows[-1]
    itl = effect_of("ITL p99", chunked, off, "itl_p99_s")
    ttft = effect_of("TTFT p50", chunked, off, "ttft_p50_s")
    speed = effect_of("throughput", chunked, off, "output_tokens_per_s")
    conclusion.append(f"{chunked.name} against {off.name}: {itl}; {ttft}; {speed}.")
    before, after = (row.median("itl_p99_over_p50") for row in (off, chunked))
    gaps_off, gaps_chunked = (row.samples["itl_p99_over_p50"] for row in (off, chunked))
    claims = [
        judged("Without chunks ITL p99 is 5 to 20 times p50", within(gaps_off, 5, 20), f"{before:.1f} times"),
        judged("With chunks it is 2 to 3 times p50", within(gaps_chunked, 2, 3), f"{after:.1f} times"),
        judged(
            "ITL p99 drops significantly, TTFT p50 may rise slightly",
            every([itl.is_("lower"), within(ttft.ratios, most=1.25)]),
            f"{itl}; {ttft}",
        ),
        judged("Throughput stays", speed.is_("none"), str(speed)),
    ]
    return Finding(conclusion, claims)
