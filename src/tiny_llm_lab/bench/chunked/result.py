"""From runs to tables and one sentence: medians over fresh processes, with their spread."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from tiny_llm_lab.bench.latency import ITL_COLUMNS, TTFT_COLUMNS, itl_metrics, latencies, ttfts_of
from tiny_llm_lab.bench.report import Column, Row, Section, samples_of
from tiny_llm_lab.bench.run import Run
from tiny_llm_lab.bench.spec import Kind, Schedule
from tiny_llm_lab.metrics import pooled_itl

_NOTE: Final = (
    "Median of fresh processes, {repeats} each (min-max below it). TTFT short: the short prompts that came "
    "during a long prefill. ITL: every gap of the requests that were decoding during one, pooled."
)
_COLUMNS: Final = (
    Column("total_s", "total s", ".2f", spread="below"),
    Column("output_tokens_per_s", "out tok/s", spread="below"),
    Column("ttft_short_s", "TTFT short ms", ".0f", 1e3, "below"),
    Column("ttft_long_s", "TTFT long ms", ".0f", 1e3, "below"),
    Column("itl_p50_s", "ITL p50 ms", ".1f", 1e3, "below"),
    Column("itl_p99_s", "ITL p99 ms", ".1f", 1e3, "below"),
    Column("itl_max_s", "ITL max ms", ".1f", 1e3, "below"),
    Column("itl_p99_over_p50", "p99/p50", ".1f"),
)
_CLASSES: Final[dict[str, tuple[Kind, ...]]] = {"short": ("early", "late"), "long": ("long",)}


@dataclass(frozen=True)
class Sample:
    """One process's run."""

    schedule: Schedule
    repeat: int
    run: Run

    def to_json(self) -> dict[str, Any]:
        return {"schedule": asdict(self.schedule), "repeat": self.repeat, **self.run.to_json()}


def sections_of(samples: Sequence[Sample], title: str, long_tokens: int) -> list[Section]:
    """All requests, a row for each schedule, smallest chunks first; then each class by itself."""
    groups = grouped(samples)
    metrics = {schedule: samples_of(map(_latencies, runs)) for schedule, runs in groups.items()}
    base = list(groups)[-1]
    longest_s = Row("", metrics[base]).median("itl_max_s")
    rows = []
    for schedule, own in metrics.items():
        ratio = Row("", own).median("itl_max_s") / longest_s
        rows.append(Row(schedule.name, own | {"max_itl_ratio": [ratio]}))
    classes = [
        Row(f"{schedule.name}, {name}", samples_of(latencies(run.of_kind(*kinds)) for run in runs))
        for schedule, runs in groups.items()
        for name, kinds in _CLASSES.items()
    ]
    name = base_name(base, long_tokens)
    columns = (*_COLUMNS, Column("max_itl_ratio", f"max ITL vs {name}", ".2f", unit="x"))
    notes = [_NOTE.format(repeats=len(groups[base])), closing_sentence(rows, name)]
    return [
        Section("all", title, columns, rows, notes=notes),
        Section(
            "classes", "Short requests, early and late, and long ones", (*TTFT_COLUMNS, *ITL_COLUMNS), classes
        ),
    ]


def grouped(samples: Sequence[Sample]) -> dict[Schedule, list[Run]]:
    """The runs of every schedule, smallest chunks first."""
    schedules = sorted({each.schedule for each in samples}, key=lambda each: (each.max_chunk, each.budget))
    return {each: [sample.run for sample in samples if sample.schedule == each] for each in schedules}


def base_name(base: Schedule, long_tokens: int) -> str:
    """What the others are compared with; "unchunked" only when a long prompt fits in one chunk."""
    return "unchunked" if base.max_chunk >= long_tokens else base.name


def closing_sentence(rows: Sequence[Row], name: str) -> str:
    """What was seen, in numbers, each schedule against the last."""
    *others, base = rows
    if not others:
        return f"Only {base.name} was measured: nothing to compare."
    compared = (
        ("max ITL", "itl_max_s"),
        ("p50 ITL", "itl_p50_s"),
        ("long TTFT", "ttft_long_s"),
        ("throughput", "output_tokens_per_s"),
    )
    said = [
        f"{row.name} had "
        + ", ".join(f"{title} {row.median(key) / base.median(key):.2f}x" for title, key in compared)
        for row in others
    ]
    fastest = min(rows, key=lambda row: row.median("total_s"))
    return f"Against {name}:\n  " + ",\n  ".join(said) + f";\nthe shortest total had {fastest.name}."


def victim_itl(run: Run) -> list[float]:
    """Every gap of every request that was decoding while a long prompt was in prefill."""
    return pooled_itl(run.timings[idx] for idx in run.victims())


def _latencies(run: Run) -> dict[str, float | None]:
    return {
        "total_s": run.total_s,
        "output_tokens_per_s": run.output_tokens_per_s,
        "ttft_short_s": median(ttfts_of(run.of_kind("late"))),
        "ttft_long_s": median(ttfts_of(run.of_kind("long"))),
        **itl_metrics(victim_itl(run)),
    }
