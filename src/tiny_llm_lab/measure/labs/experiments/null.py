"""`null`: prompts too short to be cut. Chunks should change nothing, and the spread says what nothing is."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from tiny_llm_lab.measure.bench.latency import columns
from tiny_llm_lab.measure.bench.report import Ratio, Row, Section
from tiny_llm_lab.measure.labs.effect import LEAST, LEAST_ROUNDS, within
from tiny_llm_lab.measure.labs.experiments.compare import KEYS, PANELS
from tiny_llm_lab.measure.labs.plot import bar_panels
from tiny_llm_lab.measure.labs.result import Finding, LabResult, judged
from tiny_llm_lab.measure.labs.setup import LabSetup, rows_of, traffic_metrics
from tiny_llm_lab.measure.labs.workload import rate_for, traffic
from tiny_llm_lab.measure.simulate.traffic import LengthKind
from tiny_llm_lab.runtime.console.talk import plural

QUESTION: Final = "Do chunks matter where prompts are short?"
_KINDS: Final = (LengthKind(1.0, 120, 0.5, 48, 0.5),)
_CALM: Final = (
    1.5  # two servers that are alike may differ by this factor, for a null result to mean something
)
_METRICS: Final = {
    "itl_p99_s": "ITL p99",
    "itl_p99_over_p50": "ITL p99 / p50",
    "ttft_p50_s": "TTFT p50",
    "output_tokens_per_s": "throughput",
}


def run(setup: LabSetup) -> LabResult:
    control = replace(setup.whole, name="off again")
    variants, skipped = setup.usable([setup.whole, control, setup.chunked(512)])
    pace = setup.pace(variants[0])
    rate, count = rate_for(setup, pace, _KINDS), setup.sizes.num_requests
    runs = setup.measure(variants, lambda number: traffic(setup, _KINDS, rate, count, number))
    rows = rows_of(runs, traffic_metrics)
    median = _KINDS[0].prompt_median
    title = f"{count} requests, Poisson at {rate:.1f} a second, prompts of {median} tokens in the median"
    note = "`off again` is a second server with the settings of `off`: what they differ by is chance."
    section = Section("null", title, columns(KEYS, has_spread=True), rows, notes=[note])
    draw = partial(bar_panels, rows=rows, panels=PANELS)
    return LabResult("null", QUESTION, section, finding(rows), draw, skipped)


def finding(rows: Sequence[Row]) -> Finding:
    """Each metric's ratio to `off`, beside the ratio of two servers that are alike."""
    if len(rows) < 2:
        alone = rows[0].median("itl_p99_over_p50")
        return Finding([f"ITL p99 is {alone:.1f} times p50 with {rows[0].name}; nothing to compare it with."])
    off, again, chunked = rows
    changed, noisy, said = [], [], []
    for key, name in _METRICS.items():
        chance = Ratio.of(name, again.samples[key], off.samples[key])
        ratio = Ratio.of(name, chunked.samples[key], off.samples[key])
        if chance is None or ratio is None:
            continue
        if is_beyond(ratio, chance):
            changed.append(name)
        if max(chance.high, 1 / chance.low) > _CALM:
            noisy.append(name)
        said.append(f"{name} x{ratio.value:.2f}, by chance x{chance.low:.2f} to x{chance.high:.2f}")
    details = f"chunked / off, and by chance between two servers that are alike: {'; '.join(said)}."
    measured = "; ".join(said)
    first = "Chunks changed nothing that chance does not change as much"
    rounds = len(off.samples["itl_p99_s"])
    if rounds < LEAST_ROUNDS:
        first = f"{plural(rounds, 'round')} cannot tell a change from chance"
    elif changed:
        first = f"Chunks changed {', '.join(changed)} by more than chance does"
    elif noisy:
        first += f", but chance changes {', '.join(noisy)} so much that an effect could hide in it"
    is_null = None if rounds < LEAST_ROUNDS or (noisy and not changed) else not changed
    claim = judged("With prompts of 120 tokens chunks make no difference", is_null, measured)
    ratio_off = off.median("itl_p99_over_p50")
    near_one = judged(
        "The ITL p99 / p50 stays near 1.04",
        within(off.samples["itl_p99_over_p50"], most=1.25),
        f"{ratio_off:.2f}, of pooled gaps",
    )
    return Finding([f"{first}; {details}"], [claim, near_one])


def is_beyond(ratio: Ratio, chance: Ratio) -> bool:
    """Whether a ratio of medians lies outside what the rounds of two equal servers differ by."""
    low = min(chance.low, 1 / chance.high, 1 - LEAST)
    return not low <= ratio.value <= max(chance.high, 1 / chance.low, 1 + LEAST)
