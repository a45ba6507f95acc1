"""From runs to tables and one sentence: medians over fresh processes, with their spread."""

from collections.abc import Mapping, Sequence
from typing import Final

from tiny_llm_lab.bench.latency import ITL, TTFT, columns, contention, latencies
from tiny_llm_lab.bench.report import Row, Section, ratios_of
from tiny_llm_lab.bench.run import Run
from tiny_llm_lab.bench.spec import Kind, Schedule

_NOTE: Final = (
    "Median of fresh processes, {repeats} each (min-max). TTFT short: the short prompts that came "
    "during a long prefill. ITL: every gap of the requests that were decoding during one, pooled."
)
_SHOWN: Final = ("total_s", "output_tokens_per_s", "ttft_short_s", "ttft_long_s", *ITL)
_CLASSES: Final[dict[str, tuple[Kind, ...]]] = {"short": ("early", "late"), "long": ("long",)}
# With the largest chunks, which are none where a long prompt fits into one.
_COMPARED: Final = ("itl_max_s", "itl_p50_s", "ttft_long_s", "output_tokens_per_s")


def sections_of(groups: Mapping[Schedule, Sequence[Run]], title: str) -> list[Section]:
    """All requests, a row for each schedule, smallest chunks first; then each class by itself."""
    schedules = sorted(groups, key=lambda each: (each.max_chunk, each.budget))
    *others, base = [Row.of_runs(each.name, map(contention, groups[each])) for each in schedules]
    classes = [
        Row.of_runs(f"{schedule.name}, {kind}", (latencies(run.of_kind(*kinds)) for run in groups[schedule]))
        for schedule in schedules
        for kind, kinds in _CLASSES.items()
    ]
    ratios = [ratio for row in others for ratio in ratios_of(row, base, columns(_COMPARED))]
    fastest = min([*others, base], key=lambda row: row.median("total_s"))
    notes = [_NOTE.format(repeats=len(groups[schedules[-1]])), f"The shortest total has {fastest.name}."]
    about = "Short requests, early and late, and long ones"
    return [
        Section("all", title, columns(_SHOWN, has_spread=True), [*others, base], ratios, notes),
        Section("classes", about, columns((*TTFT, *ITL)), classes),
    ]
