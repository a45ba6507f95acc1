"""`stress`: one long prompt, and three short ones that arrive during its prefill."""

from collections.abc import Sequence
from operator import attrgetter
from statistics import fmean
from typing import Final

from tiny_llm_lab.measure.bench.report import Column, Metrics, Row
from tiny_llm_lab.measure.labs.effect import claimed, effect_of, every, setting, within
from tiny_llm_lab.measure.labs.lab import BUDGET, Lab, LabSetup, Pace
from tiny_llm_lab.measure.labs.result import Finding, judged
from tiny_llm_lab.measure.labs.server import Variant
from tiny_llm_lab.measure.load.client import LoadRun
from tiny_llm_lab.measure.traffic.request import LoadRequest

_SHARE: Final = 256  # of the budget, that one prompt may have: --long-prefill-token-threshold
_NUM_SHORT, _SHORT_TOKENS, _MAX_TOKENS = 3, 256, 8
_STAGGER_S: Final = 0.03  # at most: a fast prefill is met earlier
_STAGGER_SHARE: Final = 0.15  # of the long prompt's prefill, before the first short prompt
_FASTER: Final = 1.4
_MOSTLY: Final = 0.5
_NEEDED: Final = 0.9  # of the rounds must overlap
_COLUMNS: Final = (
    Column("short_s", "shorts, mean ms", ".1f", 1e3, has_spread=True),
    Column("short_ttft_s", "shorts, TTFT ms", ".1f", 1e3, has_spread=True),
    Column("ahead", "ahead of long", ".0%"),
    Column("long_s", "long ms", ".1f", 1e3, has_spread=True),
    Column("long_ttft_s", "long, prefill only ms", ".1f", 1e3, has_spread=True),
)


def variants(setup: LabSetup) -> list[Variant]:
    """Without chunks, with a budget, and with a share of it for each prompt."""
    chunked = setup.chunked(BUDGET)
    share = ("--long-prefill-token-threshold", str(_SHARE))
    return [setup.whole, chunked, Variant(f"{BUDGET}, {_SHARE} each", (*chunked.flags, *share))]


def stagger_s(pace: Pace) -> float:
    """Between arrivals, so that all shorts come within the long prompt's prefill."""
    return min(_STAGGER_S, _STAGGER_SHARE * pace.prefill_s)


def requests_of(setup: LabSetup, pace: Pace, number: int) -> list[LoadRequest]:
    """The long prompt, then the short ones."""
    short, seed = _short(setup), 10 * (number + 1)
    longs = [setup.request(setup.long_tokens, _MAX_TOKENS, "long", 0.0, seed)]
    return longs + [
        setup.request(short, _MAX_TOKENS, "short", (each + 1) * stagger_s(pace), seed + 1 + each)
        for each in range(_NUM_SHORT)
    ]


def overlap_problem(runs: Sequence[LoadRun]) -> str | None:
    """Why the rounds say nothing: the shorts must be sent while the long prompt waits for its first token."""
    overlapping = sum(is_overlapping(run) for run in runs)
    if overlapping >= _NEEDED * len(runs):
        return None
    return (
        f"the short prompts were sent during the long prompt's prefill in {overlapping} of {len(runs)} "
        "rounds: run it again with a larger model or a longer prompt"
    )


def is_overlapping(run: LoadRun) -> bool:
    """Whether every short prompt was sent after the long one, and before its first token."""
    [long] = run.of_kind("long")
    return all(long.send_s < short.send_s < long.token_s[0] for short in run.of_kind("short"))


def metrics(run: LoadRun) -> Metrics:
    """From sending to the last token, and to the first."""
    [long], shorts = run.of_kind("long"), run.of_kind("short")
    return {
        "short_s": fmean(each.token_s[-1] - each.send_s for each in shorts),
        "ahead": fmean(each.token_s[0] < long.token_s[0] for each in shorts),
        "short_ttft_s": fmean(each.token_s[0] - each.send_s for each in shorts),
        "long_s": long.token_s[-1] - long.send_s,
        "long_ttft_s": long.token_s[0] - long.send_s,
    }


def finding(rows: Sequence[Row], problem: str | None) -> Finding:
    """Shorts and long, chunks against none, over all rounds."""
    sentences = [
        f"{setting(row.name)}, a short request takes {row.median('short_s') * 1e3:.0f} ms and the long one "
        f"{row.median('long_s') * 1e3:.0f} ms."
        for row in rows
    ]
    if problem or len(rows) < 2:
        return Finding(sentences, (), problem)
    off, chunked, capped = rows
    shorts = effect_of("The latency of the shorts with chunks", chunked, off, "short_s")
    long = effect_of("the long prompt's latency", chunked, off, "long_s")
    ahead, ahead_shared = (row.median("ahead") for row in (chunked, capped))
    shared = f"{ahead_shared:.0%} when one prompt may have {_SHARE} of the {BUDGET} tokens"
    sentences.append(f"{shorts}; {long}. {ahead:.0%} of the shorts begin before the long one does, {shared}.")
    claims = [
        judged(
            "Shorts are 1.01 to 2.30 times faster with chunks",
            every([shorts.is_("lower"), within(shorts.ratios, 1 / 2.3)]),
            str(shorts),
        ),
        judged(
            "The long prompt is 1.47 times faster with chunks",
            every([long.is_("lower"), within(long.ratios, most=1 / _FASTER)]),
            str(long),
        ),
        claimed("Short latency is unchanged", shorts, "none"),
        judged(
            "A token budget alone lets shorts overtake a long prompt",
            within(chunked.samples["ahead"], _MOSTLY),
            f"{ahead:.0%} of them begin first, {shared}",
        ),
    ]
    return Finding(sentences, claims)


def _short(setup: LabSetup) -> int:
    return min(_SHORT_TOKENS, setup.max_model_len // 8)


LAB: Final = Lab(
    name="stress",
    question="How long do short prompts wait for a long one?",
    columns=_COLUMNS,
    title="one prompt of {long_tokens} tokens, 3 of {short} tokens {stagger_ms:.0f} ms apart",
    variants=variants,
    requests=requests_of,
    metrics=metrics,
    rounds=attrgetter("num_stress"),
    problem=overlap_problem,
    notes=["Rounds of each: {num_stress}."],
    facts=lambda setup, pace: {"short": _short(setup), "stagger_ms": stagger_s(pace) * 1e3},
    finding=lambda m: finding(m.rows, m.problem),
    panels=(
        ("shorts, mean (sent to last token)", "short_s", 1e3, "ms"),
        ("long, prefill only", "long_ttft_s", 1e3, "ms"),
    ),
)
