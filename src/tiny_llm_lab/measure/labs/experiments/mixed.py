"""`mixed`: a fifth of the requests is long, and we measure the short ones."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Final

from matplotlib.figure import Figure

from tiny_llm_lab.measure.bench.report import Column, Metrics, Row
from tiny_llm_lab.measure.ink import color_of
from tiny_llm_lab.measure.labs import lab
from tiny_llm_lab.measure.labs.effect import LEAST, by_round, claimed, effect_of, every, setting, within
from tiny_llm_lab.measure.labs.result import Finding, judged
from tiny_llm_lab.measure.load.client import LoadRun, timings
from tiny_llm_lab.measure.traffic.prompts import Texts, tokenizer_for
from tiny_llm_lab.measure.traffic.request import LoadRequest
from tiny_llm_lab.runtime.metrics import percentile, pooled_itl

FILE: Final = "mixed_workload.json"
_KINDS: Final = ("short", "long")
_COLUMNS: Final = tuple(
    Column(f"{metric}_{kind}_s", f"{title} {kind} ms", spec, 1e3, has_spread=True)
    for kind in _KINDS
    for metric, title, spec in (
        ("itl_p99", "ITL p99", ".1f"),
        ("itl_max", "ITL max", ".1f"),
        ("ttft_p50", "TTFT p50", ".1f"),
    )
)


def requests_of(setup: lab.LabSetup, pace: lab.Pace, number: int) -> Sequence[LoadRequest]:
    """The requests of a round, as texts where the tokenizer is known; those of the first are written."""
    requests: Sequence[LoadRequest] = lab.mixed(setup, _rate(setup, pace), number)
    if setup.servers.is_own:
        texts = _texts(setup.model, setup.seed)
        texts.rng.seed(f"{setup.seed} {number}")
        requests = [replace(each, prompt=texts.exact(each.num_prompt_tokens)) for each in requests]
    if number == 0:
        _write(setup, requests)
    return requests


def _rate(setup: lab.LabSetup, pace: lab.Pace) -> float:
    return lab.rate_for(setup, pace, lab.mixed_kinds(setup), lab.LOAD)


@cache
def _texts(model: str, seed: int) -> Texts:
    return Texts(tokenizer_for(model, model), seed)


def _write(setup: lab.LabSetup, requests: Sequence[LoadRequest]) -> None:
    """In the order in which they are sent, for `bench-serve --dataset-path` and `batch-main --prompts`."""
    keys = ("prompt", "max_tokens", "arrival_s")
    entries = [{key: getattr(each, key) for key in keys} for each in requests]
    (setup.folder / FILE).write_text(json.dumps(entries) + "\n", encoding="utf-8")


def metrics(run: LoadRun) -> Metrics:
    """ITL and TTFT of each class."""
    results: dict[str, float | None] = {}
    for kind in _KINDS:
        own = timings(run.of_kind(kind))
        gaps, ttfts = pooled_itl(own), [timing.ttft_s or 0.0 for timing in own]
        results |= {
            f"itl_p99_{kind}_s": percentile(gaps, 99),
            f"itl_max_{kind}_s": max(gaps, default=None),
            f"ttft_p50_{kind}_s": percentile(ttfts, 50),
        }
    return results


def finding(rows: Sequence[Row]) -> Finding:
    """Longest gaps, ITL p99 and TTFT of each class, chunks against none.

    The longest gap decides: a short answer has some hundred gaps, so p99 may leave out its one long pause.
    """
    sentences = [
        f"{setting(row.name)}, {_longest('short', row)}, and {_longest('long', row)}." for row in rows
    ]
    if len(rows) < 2:
        return Finding(sentences)
    off, chunked = rows
    short, long, *others = (
        effect_of(f"{metric} of {kind} requests", chunked, off, f"{key}_{kind}_s")
        for metric, key in (("the longest gap", "itl_max"), ("ITL p99", "itl_p99"), ("TTFT p50", "ttft_p50"))
        for kind in _KINDS
    )
    sentences.append(f"With chunks, {'; '.join(map(str, (short, long, *others)))}.")
    is_more = within(by_round(short.ratios, long.ratios), most=1 - LEAST)
    claims = [
        claimed("Chunks protect short requests", short, "lower"),
        judged(
            "Short requests are the most sensitive to long prefills",
            every([short.is_("lower"), is_more]),
            f"{short}; {long}",
        ),
    ]
    return Finding(sentences, claims)


def _longest(kind: str, row: Row) -> str:
    longest, p99 = (row.median(f"{key}_{kind}_s") * 1e3 for key in ("itl_max", "itl_p99"))
    return f"the longest gap of {kind} requests is {longest:.1f} ms (p99 {p99:.1f})"


def draw(measured: lab.Measured, figure: Figure) -> None:
    """How many gaps are longer than so many ms, for each class and variant, all rounds pooled."""
    panels = figure.subplots(1, len(_KINDS), sharey=True)
    for axes, kind in zip(panels, _KINDS, strict=True):
        for name, each in measured.runs.items():
            gaps = sorted(gap * 1e3 for run in each for gap in pooled_itl(timings(run.of_kind(kind))))
            shares = [1 - idx / len(gaps) for idx in range(len(gaps))]
            axes.step(gaps, shares, color=color_of(name), label=name)
        axes.set(xscale="log", yscale="log", xlabel="ITL (ms)")
        axes.axhline(0.01, linestyle="--", linewidth=0.8, color="gray")
        axes.set_title(f"gaps of {kind} requests (dashed: p99)", loc="left", fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend()
    panels[0].set_ylabel("share of gaps that are longer")


def _facts(setup: lab.LabSetup, pace: lab.Pace) -> dict[str, object]:
    shapes, longs = lab.mixed_shapes(setup).items(), setup.sizes.num_requests // 5
    note = "; ".join(f"{kind}: {shape[0]} tokens, answers of {shape[1]}" for kind, shape in shapes)
    rate, shorts = _rate(setup, pace), setup.sizes.num_requests - longs
    return {"longs": longs, "shorts": shorts, "rate": rate, "shapes": note}


LAB: Final = lab.Lab(
    name="mixed",
    question="How much do long requests slow down short ones?",
    columns=_COLUMNS,
    title="{longs} long and {shorts} short requests, {rate:.1f} a second",
    requests=requests_of,
    metrics=metrics,
    problem=partial(lab.meeting_problem, kind="long", share=0.3),
    notes=[f"{{shapes}}. {FILE} has the requests of the first round."],
    facts=_facts,
    finding=lambda m: finding(m.rows),
    draw=draw,
)
