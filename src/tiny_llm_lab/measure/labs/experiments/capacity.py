"""`capacity`: the highest request rate that keeps two SLOs, without and with chunks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from math import sqrt
from typing import Final

from tiny_llm_lab.measure.bench.report import Column, Row, Section
from tiny_llm_lab.measure.labs.effect import effect_of, setting, within
from tiny_llm_lab.measure.labs.lab import (
    LabSetup,
    OwnLab,
    met_share,
    mixed,
    mixed_kinds,
    rate_for,
    require_gaps,
)
from tiny_llm_lab.measure.labs.result import Finding, LabResult, bar_panels, judged
from tiny_llm_lab.measure.labs.server import Variant
from tiny_llm_lab.measure.load.client import LoadRun, timings
from tiny_llm_lab.runtime.console.talk import log
from tiny_llm_lab.runtime.interleave import interleave
from tiny_llm_lab.runtime.metrics import percentile

_BUDGET: Final = 128
_SHARE: Final = 90  # percent of the requests whose longest gap counts
_TTFT_PREFILLS: Final = 4.0  # the SLO of the median TTFT, in prefills of a long prompt
_LEAST, _MOST = 0.05, 1.6  # rates that are tried, in what the machine could compute
_ROUNDS: Final = 3
_LEAST_MET: Final = 0.3  # of the long prompts, at one rate at least
_COLUMNS: Final = (
    Column("rate", "requests/s", ".2f", has_spread=True),
    Column("gap_s", "longest gap of 9 in 10 there ms", ".1f", 1e3),
    Column("ttft_p50_s", "TTFT p50 there ms", ".1f", 1e3),
)


@dataclass(frozen=True)
class Slos:
    """The longest gap of nine in ten requests, and the median TTFT.

    Not the P99 of pooled gaps, which misses a stall that is rarer than one gap in a hundred.
    """

    gap_s: float
    ttft_p50_s: float


@dataclass(frozen=True)
class Probe:
    """A rate, and what the latencies were."""

    rate: float
    gap_s: float
    ttft_p50_s: float
    met: float  # share of the long prompts whose prefill met decodes

    def keeps(self, slos: Slos) -> bool:
        return self.gap_s <= slos.gap_s and self.ttft_p50_s <= slos.ttft_p50_s


def run(setup: LabSetup) -> LabResult:
    variants, skipped = setup.usable([setup.whole, setup.chunked(_BUDGET)])
    pace = setup.pace(variants[0])
    full = rate_for(setup, pace, mixed_kinds(setup), 1.0)
    slos = Slos(setup.itl_slo(pace), _TTFT_PREFILLS * pace.prefill_s)
    rounds, probes = min(_ROUNDS, setup.sizes.rounds), dict[str, list[list[Probe]]]()
    numbers = count()  # of the probes, so that no prompt is sent twice
    for number, variant in interleave([*reversed(variants)], rounds):
        log(f"  {variant.name}, search {number + 1} of {rounds}")
        measure = partial(_probe, setup, variant, numbers)
        result = search(measure, slos, _LEAST * full, _MOST * full, setup.sizes.num_probes)
        probes.setdefault(variant.name, []).append(result)
    rows = [row_of(variant.name, probes[variant.name], slos) for variant in variants]
    title = (
        f"Mixed requests; no gap of nine in ten requests above {slos.gap_s * 1e3:.1f} ms, "
        f"median TTFT at most {slos.ttft_p50_s * 1e3:.0f} ms"
    )
    note = f"We tried rates from {_LEAST * full:.2f} to {_MOST * full:.2f} a second; 0 means that all failed."
    data = {name: [[asdict(probe) for probe in result] for result in each] for name, each in probes.items()}
    section = Section("capacity", title, _COLUMNS, rows, notes=[note], data=asdict(slos) | {"probes": data})
    draw = partial(bar_panels, rows=rows, panels=(("requests per second", "rate", 1.0, "1/s"),))
    conclusion, problem = (
        finding(rows),
        meeting_problem([search for each in probes.values() for search in each]),
    )
    if problem:
        conclusion = Finding(conclusion.conclusion, (), problem)
    return LabResult("capacity", LAB.question, section, conclusion, draw, skipped)


def meeting_problem(searches: Sequence[Sequence[Probe]]) -> str | None:
    """Why the searches say nothing: long prompts met decodes at no rate. At the best one they may not."""
    lowest = min(max(probe.met for probe in result) for result in searches)
    if lowest >= _LEAST_MET:
        return None
    return (
        f"in a search at most {lowest:.0%} of the long prompts were computed while another request was "
        "decoding: run it again with more requests"
    )


def _probe(setup: LabSetup, variant: Variant, numbers: Iterator[int], rate: float) -> Probe:
    run = setup.send(variant, mixed(setup, rate, next(numbers)))
    require_gaps([run])
    return probe_of(rate, run)


def probe_of(rate: float, run: LoadRun) -> Probe:
    """The latencies of a run, of long and short requests together."""
    each = timings(run.records)
    ttfts = [timing.ttft_s or 0.0 for timing in each]
    longest = [max(timing.itl_s, default=0.0) for timing in each]
    return Probe(rate, percentile(longest, _SHARE), percentile(ttfts, 50), met_share(run, "long"))


def search(
    measure: Callable[[float], Probe], slos: Slos, least: float, most: float, num_probes: int
) -> list[Probe]:
    """Bisect between two rates, in factors; every rate that was tried."""
    probes: list[Probe] = []
    for _ in range(num_probes):
        probes.append(measure(sqrt(least * most)))
        if probes[-1].keeps(slos):
            least = probes[-1].rate
        else:
            most = probes[-1].rate
    return probes


def row_of(name: str, searches: Sequence[Sequence[Probe]], slos: Slos) -> Row:
    """A sample for each search: the highest rate that kept the SLOs, or 0 and the lowest rate's latencies."""
    best = [
        max((each for each in result if each.keeps(slos)), key=lambda each: each.rate, default=None)
        for result in searches
    ]
    shown = [
        each or min(result, key=lambda probe: probe.rate) for each, result in zip(best, searches, strict=True)
    ]
    return Row(
        name,
        {
            "rate": [each.rate if each else 0.0 for each in best],
            "gap_s": [each.gap_s for each in shown],
            "ttft_p50_s": [each.ttft_p50_s for each in shown],
        },
    )


def finding(rows: Sequence[Row]) -> Finding:
    """Capacities, and their ratio."""
    sentences = [
        f"{setting(row.name)}, requests meet the SLOs up to {row.median('rate'):.2f} a second."
        for row in rows
    ]
    if len(rows) < 2:
        return Finding(sentences)
    off, chunked = rows
    text = "Chunks raise the load that an ITL SLO allows"
    if not off.median("rate"):
        sentences.append("Without chunks every rate we tried misses them.")
        is_raised = within([float((rate or 0) > 0) for rate in chunked.samples["rate"]], 1)
        return Finding(sentences, [judged(text, is_raised, sentences[-1])])
    effect = effect_of("the capacity with chunks", chunked, off, "rate")
    return Finding([*sentences, f"So {effect}."], [judged(text, effect.is_("higher"), str(effect))])


LAB: Final = OwnLab("How many requests a second meet the SLOs?", run)
