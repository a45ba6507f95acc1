"""From runs to tables and one sentence: medians over fresh processes, with their spread."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from tiny_llm_lab.bench.report import Column, Row, Samples, Section
from tiny_llm_lab.bench.run import Kind, Run
from tiny_llm_lab.bench.sample import Schedule
from tiny_llm_lab.metrics import percentile, pooled_itl
from tiny_llm_lab.types import Timing

_NOTE: Final = (
    "Median of {repeats} fresh processes (min-max below it). TTFT short: the short prompts that arrived "
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
_CLASS_COLUMNS: Final = (
    Column("ttft_p50_s", "TTFT p50 ms", ".0f", 1e3),
    Column("ttft_p99_s", "TTFT p99 ms", ".0f", 1e3),
    Column("itl_p50_s", "ITL p50 ms", ".1f", 1e3),
    Column("itl_p99_s", "ITL p99 ms", ".1f", 1e3),
    Column("itl_max_s", "ITL max ms", ".1f", 1e3),
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
    metrics = {schedule: _pooled(map(_latencies, runs)) for schedule, runs in groups.items()}
    base = list(groups)[-1]
    longest_s = Row("", metrics[base]).median("itl_max_s")
    rows = []
    for schedule, own in metrics.items():
        ratio = Row("", own).median("itl_max_s") / longest_s
        rows.append(Row(schedule.name, own | {"max_itl_ratio": [ratio]}))
    classes = [
        Row(f"{schedule.name}, {name}", _pooled(_of_class(run.of_kind(*kinds)) for run in runs))
        for schedule, runs in groups.items()
        for name, kinds in _CLASSES.items()
    ]
    name = base_name(base, long_tokens)
    columns = (*_COLUMNS, Column("max_itl_ratio", f"max ITL vs {name}", ".2f", unit="x"))
    notes = [_NOTE.format(repeats=len(groups[base])), closing_sentence(rows, name)]
    return [
        Section("all", title, columns, rows, notes=notes),
        Section("classes", "Short requests, early and late, and long ones", _CLASS_COLUMNS, classes),
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
        "ttft_short_s": median(_ttfts(run.of_kind("late"))),
        "ttft_long_s": median(_ttfts(run.of_kind("long"))),
        **_itl(victim_itl(run)),
    }


def _of_class(timings: Sequence[Timing]) -> dict[str, float | None]:
    ttfts = _ttfts(timings)
    return {
        "ttft_p50_s": percentile(ttfts, 50),
        "ttft_p99_s": percentile(ttfts, 99),
        **_itl(pooled_itl(timings)),
    }


def _itl(gaps: Sequence[float]) -> dict[str, float | None]:
    """Percentiles of gaps; None when there are none, as with answers of one token."""
    if not gaps:
        return dict.fromkeys(("itl_p50_s", "itl_p99_s", "itl_max_s", "itl_p99_over_p50"))
    p50_s, p99_s = percentile(gaps, 50), percentile(gaps, 99)
    ratio = p99_s / p50_s if p50_s else None
    return {"itl_p50_s": p50_s, "itl_p99_s": p99_s, "itl_max_s": max(gaps), "itl_p99_over_p50": ratio}


def _ttfts(timings: Sequence[Timing]) -> list[float]:
    return [timing.ttft_s for timing in timings if timing.ttft_s is not None]


def _pooled(metrics: Iterable[Mapping[str, float | None]]) -> dict[str, Samples]:
    """The samples of each metric, one of every run."""
    rows = list(metrics)
    return {key: [row[key] for row in rows] for key in rows[0]}
