"""From samples to a table and one sentence: medians over fresh processes, with their spread."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from rich import box
from rich.table import Table

from tiny_llm_lab.metrics import percentile, pooled_itl
from tiny_llm_lab.types import Timing

from .recording import Sample

CAPTION: Final = (
    "Median of {repeats} fresh processes (min-max below it). TTFT short: the short prompts that arrived\n"
    "during a long prefill. ITL: every gap of the requests that were decoding during one, pooled."
)


@dataclass(frozen=True)
class Measured:
    """One number over all repeats."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class StepReport:
    """One prefill_step; times in seconds."""

    prefill_step: int
    repeats: int
    total_s: Measured
    output_tokens_per_s: Measured
    ttft_short_s: Measured
    ttft_long_s: Measured
    itl_p50_s: Measured
    itl_p99_s: Measured
    itl_max_s: Measured


# The columns between prefill_step and the ratio: title, field, factor, decimals.
_COLUMNS: Final = (
    ("total s", "total_s", 1, 2),
    ("out tok/s", "output_tokens_per_s", 1, 1),
    ("TTFT short ms", "ttft_short_s", 1000, 0),
    ("TTFT long ms", "ttft_long_s", 1000, 0),
    ("ITL p50 ms", "itl_p50_s", 1000, 1),
    ("ITL p99 ms", "itl_p99_s", 1000, 1),
    ("ITL max ms", "itl_max_s", 1000, 1),
)


def report_steps(samples: Sequence[Sample]) -> list[StepReport]:
    """One report per prefill_step, in ascending order."""
    return [
        _report([sample for sample in samples if sample.prefill_step == step])
        for step in sorted({sample.prefill_step for sample in samples})
    ]


def report_table(steps: Sequence[StepReport], long_tokens: int, plain: bool) -> Table:
    """A row per prefill_step; the last column compares the longest gap with the largest step's."""
    base = steps[-1]
    table = Table(
        box=None if plain else box.SIMPLE_HEAD,
        caption=CAPTION.format(repeats=base.repeats),
        caption_justify="left",
        pad_edge=False,
    )
    table.add_column("prefill_step", justify="right", no_wrap=True)
    for title, *_ in _COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("max ITL vs " + base_name(base, long_tokens), justify="right", no_wrap=True)
    for step in steps:
        cells = [_cell(getattr(step, name), factor, digits) for _, name, factor, digits in _COLUMNS]
        table.add_row(str(step.prefill_step), *cells, f"{_ratio(step, base, 'itl_max_s'):.2f}x")
    return table


def closing_sentence(steps: Sequence[StepReport], long_tokens: int) -> str:
    """What was seen, in numbers, each step against the largest."""
    base, others = steps[-1], steps[:-1]
    if not others:
        return f"Only prefill_step {base.prefill_step} was measured: nothing to compare."
    said = [
        f"prefill_step {step.prefill_step} had max ITL {_ratio(step, base, 'itl_max_s'):.2f}x, "
        f"p50 ITL {_ratio(step, base, 'itl_p50_s'):.2f}x, "
        f"long TTFT {_ratio(step, base, 'ttft_long_s'):.2f}x, "
        f"throughput {_ratio(step, base, 'output_tokens_per_s'):.2f}x"
        for step in others
    ]
    fastest = min(steps, key=lambda step: step.total_s.median)
    compared = f"Against {base_name(base, long_tokens)}:\n  " + ",\n  ".join(said)
    return f"{compared};\nthe shortest total had prefill_step {fastest.prefill_step}."


def base_name(base: StepReport, long_tokens: int) -> str:
    """What the others are compared with; "unchunked" only when a long prompt fits in one chunk."""
    return "unchunked" if base.prefill_step >= long_tokens else f"prefill_step {base.prefill_step}"


def _report(samples: Sequence[Sample]) -> StepReport:
    def measured(metric: Callable[[Sample], float]) -> Measured:
        values = [metric(sample) for sample in samples]
        return Measured(median(values), min(values), max(values))

    return StepReport(
        prefill_step=samples[0].prefill_step,
        repeats=len(samples),
        total_s=measured(lambda sample: sample.total_s),
        output_tokens_per_s=measured(lambda sample: sample.num_output_tokens / sample.total_s),
        ttft_short_s=measured(lambda sample: _median_ttft(sample.of_kind("late"))),
        ttft_long_s=measured(lambda sample: _median_ttft(sample.of_kind("long"))),
        itl_p50_s=measured(lambda sample: percentile(victim_itl(sample), 50)),
        itl_p99_s=measured(lambda sample: percentile(victim_itl(sample), 99)),
        itl_max_s=measured(lambda sample: max(victim_itl(sample))),
    )


def victim_itl(sample: Sample) -> list[float]:
    """Every gap of every request that was decoding while a long prompt was in prefill."""
    return pooled_itl(sample.timings[idx] for idx in sample.victims())


def _median_ttft(timings: Sequence[Timing]) -> float:
    return median(timing.ttft_s for timing in timings if timing.ttft_s is not None)


def _ratio(step: StepReport, base: StepReport, name: str) -> float:
    over, under = getattr(step, name).median, getattr(base, name).median
    return float(over / under)


def _cell(value: Measured, factor: int, digits: int) -> str:
    low, middle, high = (f"{number * factor:.{digits}f}" for number in (value.low, value.median, value.high))
    return middle if low == high else f"{middle}\n{low}-{high}"
