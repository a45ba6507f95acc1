"""`hurts`: three workloads for which chunked prefill is said to be worse."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from tiny_llm_lab.measure.bench.report import Column, Row, Section
from tiny_llm_lab.measure.labs.effect import Effect, by_round, effect_of
from tiny_llm_lab.measure.labs.lab import LabSetup, OwnLab, rows_of
from tiny_llm_lab.measure.labs.result import Claim, Finding, LabResult, bar_panels, judged
from tiny_llm_lab.measure.load.client import LoadRun
from tiny_llm_lab.measure.traffic.request import LoadRequest

_BUDGET: Final = 256
_ROUND: Final = 10_000  # seeds of a round, which all workloads share
_CLAIMS: Final = {
    "lone long prompt": "A single long prompt is faster in one pass",
    "offline batch": "An offline batch is faster with whole prompts",
    "prompts below 100 tokens": "With prompts below 100 tokens chunking adds overhead",
}
_COLUMNS: Final = (
    Column("off_s", "off ms", ".1f", 1e3, has_spread=True),
    Column("chunked_s", f"{_BUDGET} ms", ".1f", 1e3, has_spread=True),
    Column("ratio", "chunked / off", ".2f", has_spread=True),
)
_PANELS: Final = (("time with chunks / time without (above 1: chunks hurt)", "ratio", 1.0, "x"),)
Make = Callable[[LabSetup, int], Sequence[LoadRequest]]


def run(setup: LabSetup) -> LabResult:
    variants, skipped = setup.usable([setup.whole, setup.chunked(_BUDGET)])
    rows, effects = [], []
    for name, make in WORKLOADS.items():
        runs = setup.measure(variants, partial(make, setup))
        pair = rows_of(runs, lambda run: {"total_s": last_token_s(run)})
        rows.append(_row(name, pair))
        if len(pair) > 1:
            effects.append(effect_of("the time with chunks", pair[1], pair[0], "total_s"))
    title = f"Seconds until the last token, without chunks and with a budget of {_BUDGET} tokens"
    section = Section("hurts", title, _COLUMNS, rows)
    conclusion, draw = finding(rows, effects), partial(bar_panels, rows=rows, panels=_PANELS)
    return LabResult("hurts", LAB.question, section, conclusion, draw, skipped)


def last_token_s(run: LoadRun) -> float:
    """From the first sending to the last token of all."""
    start_s = min(record.send_s for record in run.records)
    return max(record.token_s[-1] for record in run.records) - start_s


def lone(setup: LabSetup, number: int) -> list[LoadRequest]:
    """A prompt as long as the model takes; its first token ends the run."""
    return [setup.request(setup.max_model_len - 8, 1, "long", 0.0, _ROUND * (number + 1))]


def offline(setup: LabSetup, number: int) -> list[LoadRequest]:
    """Prompts of several lengths, all there at the start."""
    seed = _ROUND * (number + 1) + 1
    lengths = [setup.max_model_len // 16 * (1 + each % 8) for each in range(setup.sizes.num_requests // 2)]
    return [setup.request(length, 16, "batch", 0.0, seed + idx) for idx, length in enumerate(lengths)]


def short(setup: LabSetup, number: int) -> list[LoadRequest]:
    """Prompts below 100 tokens, all there at the start."""
    count = setup.sizes.num_requests
    seed = _ROUND * (number + 1) + 1 + count  # after those of `offline`, on the same servers
    return [setup.request(40 + idx % 60, 16, "short", 0.0, seed + idx) for idx in range(count)]


WORKLOADS: Final[Mapping[str, Make]] = dict(zip(_CLAIMS, (lone, offline, short), strict=True))


def _row(name: str, pair: Sequence[Row]) -> Row:
    off = pair[0].samples["total_s"]
    if len(pair) < 2:
        return Row(name, {"off_s": off})
    chunked = pair[1].samples["total_s"]
    return Row(name, {"off_s": off, "chunked_s": chunked, "ratio": by_round(chunked, off)})


def finding(rows: Sequence[Row], effects: Sequence[Effect]) -> Finding:
    """One sentence and one claim for each workload."""
    if not effects:
        return Finding(["This server cannot turn chunks off, so there is nothing to compare."])
    sentences: list[str] = []
    claims: list[Claim] = []
    for row, effect in zip(rows, effects, strict=True):
        sentences.append(f"{row.name.capitalize()}: {effect}.")
        claims.append(judged(_CLAIMS[row.name], effect.is_("higher"), str(effect)))
    hurt = [row.name for row, effect in zip(rows, effects, strict=True) if effect.kind == "higher"]
    unclear = [row.name for row, effect in zip(rows, effects, strict=True) if effect.kind == "unclear"]
    if hurt or not unclear:
        sentences.append(f"Chunks hurt {' and '.join(hurt)}." if hurt else "Chunks hurt none of the three.")
    if unclear:
        sentences.append(f"Not measurable here: {', '.join(unclear)}.")
    return Finding(sentences, claims)


LAB: Final = OwnLab("When do chunks hurt?", run)
