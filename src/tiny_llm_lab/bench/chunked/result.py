"""From runs to tables and one sentence: medians over fresh processes, with their spread."""

from collections.abc import Mapping, Sequence
from typing import Final

from tiny_llm_lab.bench.latency import ITL, TTFT, columns, contention, latencies
from tiny_llm_lab.bench.report import Column, Row, Section
from tiny_llm_lab.bench.run import Run
from tiny_llm_lab.bench.spec import Kind, Schedule

_NOTE: Final = (
    "Median of fresh processes, {repeats} each (min-max). TTFT short: the short prompts that came "
    "during a long prefill. ITL: every gap of the requests that were decoding during one, pooled."
)
_SHOWN: Final = ("total_s", "output_tokens_per_s", "ttft_short_s", "ttft_long_s", *ITL)
_CLASSES: Final[dict[str, tuple[Kind, ...]]] = {"short": ("early", "late"), "long": ("long",)}
_COMPARED: Final = {
    "max ITL": "itl_max_s",
    "p50 ITL": "itl_p50_s",
    "long TTFT": "ttft_long_s",
    "throughput": "output_tokens_per_s",
}


def sections_of(groups: Mapping[Schedule, Sequence[Run]], title: str, long_tokens: int) -> list[Section]:
    """All requests, a row for each schedule, smallest chunks first; then each class by itself."""
    schedules = sorted(groups, key=lambda each: (each.max_chunk, each.budget))
    plain = [Row.of_runs(each.name, map(contention, groups[each])) for each in schedules]
    base, longest_s = schedules[-1], plain[-1].median("itl_max_s")
    # Only where a long prompt fits in one chunk.
    name = "unchunked" if base.max_chunk >= long_tokens else base.name
    rows = [
        Row(row.name, {**row.samples, "max_itl_ratio": [row.median("itl_max_s") / longest_s]})
        for row in plain
    ]
    classes = [
        Row.of_runs(f"{schedule.name}, {kind}", (latencies(run.of_kind(*kinds)) for run in groups[schedule]))
        for schedule in schedules
        for kind, kinds in _CLASSES.items()
    ]
    shown = [
        *columns(_SHOWN, has_spread=True),
        Column("max_itl_ratio", f"max ITL vs {name}", ".2f", unit="x"),
    ]
    notes = [_NOTE.format(repeats=len(groups[base])), closing_sentence(rows, name)]
    about = "Short requests, early and late, and long ones"
    return [
        Section("all", title, shown, rows, notes=notes),
        Section("classes", about, columns((*TTFT, *ITL)), classes),
    ]


def closing_sentence(rows: Sequence[Row], name: str) -> str:
    """What was seen, in numbers, each schedule against the last."""
    *others, base = rows
    if not others:
        return f"Only {base.name} was measured: nothing to compare."
    said = [
        f"{row.name} had "
        + ", ".join(f"{title} {row.median(key) / base.median(key):.2f}x" for title, key in _COMPARED.items())
        for row in others
    ]
    fastest = min(rows, key=lambda row: row.median("total_s"))
    return f"Against {name}:\n  " + ",\n  ".join(said) + f";\nthe shortest total had {fastest.name}."
