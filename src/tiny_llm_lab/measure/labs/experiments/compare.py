"""`compare`: three configurations under the same traffic."""

from collections.abc import Sequence
from typing import Final

from tiny_llm_lab.measure.bench.host import cpu_model
from tiny_llm_lab.measure.bench.latency import ITL, TTFT, columns
from tiny_llm_lab.measure.bench.report import Row
from tiny_llm_lab.measure.labs import lab
from tiny_llm_lab.measure.labs.effect import claimed, effect_of, every, in_words, setting, within
from tiny_llm_lab.measure.labs.result import Finding, judged
from tiny_llm_lab.measure.labs.server import Variant
from tiny_llm_lab.measure.traffic.request import LengthKind, LoadRequest

_KEYS: Final = (*TTFT, *ITL, "output_tokens_per_s")


def _kinds(setup: lab.LabSetup, tokens: int | None) -> tuple[LengthKind, ...]:
    # Like conversations: many short prompts, some very long ones.
    return (LengthKind(1.0, tokens or setup.max_model_len // 8, 0.0 if tokens else 1.0, 48, 0.5),)


def requests_of(
    setup: lab.LabSetup, pace: lab.Pace, number: int, tokens: int | None = None
) -> list[LoadRequest]:
    """Ordinary traffic at a rate that suits this machine; `tokens`: of each prompt, if all are alike."""
    kinds = _kinds(setup, tokens)
    return lab.traffic(setup, kinds, lab.rate_for(setup, pace, kinds), number)


def finding(rows: Sequence[Row]) -> Finding:
    """The smallest chunks against none."""
    conclusion = [
        f"{setting(row.name)}, ITL p99 is {row.median('itl_p99_over_p50'):.1f} times p50." for row in rows
    ]
    if len(rows) < 2:
        return Finding(conclusion)
    off, chunked = rows[0], rows[-1]
    itl = effect_of("ITL p99", chunked, off, "itl_p99_s")
    ttft = effect_of("TTFT p50", chunked, off, "ttft_p50_s")
    speed = effect_of("throughput", chunked, off, "output_tokens_per_s")
    conclusion.insert(0, in_words(itl, ttft, speed))
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
        claimed("Throughput stays", speed, "none"),
    ]
    return Finding(conclusion, claims)


def facts(setup: lab.LabSetup, pace: lab.Pace, tokens: int | None = None) -> dict[str, object]:
    """The rate, the prompts and the machine, for the title."""
    [kind] = kinds = _kinds(setup, tokens)
    return {"rate": lab.rate_for(setup, pace, kinds), "prompt": kind.prompt_median, "cpu": cpu_model()}


LAB: Final = lab.Lab(
    name="compare",
    question="What do chunks change under ordinary traffic?",
    columns=columns(_KEYS, has_spread=True),
    title="{num_requests} requests, Poisson at {rate:.1f} a second, prompts of {prompt} tokens in the median",
    variants=lambda setup: [setup.whole, Variant("default"), setup.chunked(lab.BUDGET)],
    requests=requests_of,
    metrics=lab.traffic_metrics,
    problem=lab.meeting_problem,
    notes=["On {cpu}."],
    facts=facts,
    finding=lambda m: finding(m.rows),
    panels=(
        ("ITL p99", "itl_p99_s", 1e3, "ms"),
        ("TTFT p50", "ttft_p50_s", 1e3, "ms"),
        ("output tokens per second", "output_tokens_per_s", 1.0, "tok/s"),
    ),
)
