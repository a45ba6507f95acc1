"""`hol`: one long prompt arrives while many answers are running, without and with chunks."""

from collections.abc import Sequence
from math import ceil
from statistics import median
from typing import Final

from tiny_llm_lab.measure.bench.report import Column, Metrics, Row
from tiny_llm_lab.measure.labs.effect import by_round, claimed, effect_of, every, setting, within
from tiny_llm_lab.measure.labs.lab import BUDGET, Lab, Measured, contention, overlap_problem
from tiny_llm_lab.measure.labs.result import Claim, Finding, judged
from tiny_llm_lab.measure.load.client import LoadRun, timings
from tiny_llm_lab.measure.simulate.run import SimulatedEngine
from tiny_llm_lab.measure.simulate.setting import Roofline, Setting
from tiny_llm_lab.measure.traffic.request import Request
from tiny_llm_lab.runtime.solution import load_scheduling

_A_SECOND: Final = Roofline(1.0, 0.0, 0.0, 0.0, 0.0)
_COLUMNS: Final = (
    Column("usual_s", "usual gap ms", ".2f", 1e3),
    Column("stall_s", "longest gap of a stream ms", ".1f", 1e3, has_spread=True),
    Column("stall_steps", "in gaps", ".1f"),
    Column("ttft_long_s", "TTFT long ms", ".1f", 1e3, has_spread=True),
)


def metrics(run: LoadRun) -> Metrics:
    """The longest gap of each stream, and the mean of its other gaps; medians over the streams."""
    gaps = [timing.itl_s for timing in timings(run.of_kind("stream"))]
    stall_s = median(map(max, gaps))
    usual_s = median((sum(each) - max(each)) / max(1, len(each) - 1) for each in gaps)
    return {
        "usual_s": usual_s,
        "stall_s": stall_s,
        "stall_steps": stall_s / usual_s if usual_s else None,
        "ttft_long_s": run.of_kind("long")[0].timing.ttft_s,
    }


def step_count(solution: str, num_tokens: int, budget: int, num_decodes: int) -> int:
    """Steps that the scheduler plans for a prompt while other requests decode, simulated at a second each."""
    setting = Setting(budget=str(budget), max_num_seqs=min(64, budget), max_model_len=num_tokens + 64)
    engine = SimulatedEngine(load_scheduling(solution), setting, _A_SECOND)
    decodes = [Request("decode", 1, num_tokens)] * num_decodes
    stats = engine.replay([*decodes, Request("long", num_tokens, 1, arrival_s=1.0)])
    [long] = (each.timing for each in stats.finished if each.request.kind == "long")
    return round(long.ttft_s or 0)


def finding(rows: Sequence[Row], long_tokens: int, steps: Sequence[int], problem: str | None) -> Finding:
    """What the longest gaps say."""
    first = rows[0]
    stall_ms, factor = first.median("stall_s") * 1e3, first.median("stall_steps")
    sentences = [
        f"{setting(first.name)}, the long prompt makes the median stream wait {stall_ms:.1f} ms for one "
        f"token, {factor:.1f} times its usual gap."
    ]
    if problem or len(rows) < 2:
        return Finding(sentences, _step_claims(steps), problem)
    whole, chunked = rows
    stall = effect_of("The longest gap with chunks", chunked, whole, "stall_s")
    ttft = effect_of("the long prompt's TTFT", chunked, whole, "ttft_long_s")
    sentences.append(f"{stall}; {ttft}.")
    num_chunks, ratio = ceil(long_tokens / BUDGET), whole.median("stall_s") / chunked.median("stall_s")
    share = whole.median("stall_s") / whole.median("ttft_long_s")
    shares = by_round(whole.samples["stall_s"], whole.samples["ttft_long_s"])
    claims = [
        judged(
            "Every stream stalls for the whole prefill (10 ms gaps, then 200 ms: 20 times)",
            every([within(shares, 0.7), within(whole.samples["stall_steps"], 5)]),
            f"the gap is {share:.0%} of the long prompt's TTFT, and {factor:.1f} times the usual one",
        ),
        judged(
            f"Chunks of {BUDGET} divide the stall by the number of chunks (200 ms to 25 ms)",
            within(stall.ratios, most=1 / (0.9 * num_chunks)),
            f"{num_chunks} chunks divide it by {ratio:.1f}: a step has a fixed cost and also decodes next "
            "to the chunk, and late chunks read more",
        ),
        claimed("Chunks make the long prompt's first token later", ttft, "higher"),
    ]
    return Finding(sentences, [*claims, *_step_claims(steps)])


def _step_claims(steps: Sequence[int]) -> list[Claim]:
    alone, beside = steps
    text = "A prompt of 4096 tokens takes floor(4096 / 512) = 8 steps, interleaved with decodes"
    message = f"{alone} steps alone, {beside} together with one decode, which takes a token of every budget"
    return [judged(text, alone == beside == 8, message)]


def _steps(measured: Measured) -> list[int]:
    return [step_count(measured.setup.solution, 4096, BUDGET, decodes) for decodes in (0, 1)]


LAB: Final = Lab(
    name="hol",
    question="What does one long prompt do to running answers?",
    columns=_COLUMNS,
    title="{streams} answers, and one prompt of {long_tokens} tokens",
    requests=lambda setup, pace, number: contention(setup, pace, 1, number),
    metrics=metrics,
    problem=overlap_problem,
    data=lambda m: {"steps": _steps(m)},
    finding=lambda m: finding(m.rows, m.setup.long_tokens, _steps(m), m.problem),
    panels=(
        ("longest gap of a stream", "stall_s", 1e3, "ms"),
        ("TTFT of the long prompt", "ttft_long_s", 1e3, "ms"),
    ),
)
