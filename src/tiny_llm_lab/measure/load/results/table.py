"""The result of a load run as `vllm bench serve` prints it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from tiny_llm_lab.measure.ink import KINDS, save_figure
from tiny_llm_lab.measure.load.client import LoadRun, RequestRecord, timings
from tiny_llm_lab.runtime.console.tables import KEEP, Column, print_table
from tiny_llm_lab.runtime.console.talk import plural
from tiny_llm_lab.runtime.metrics import percentile, pooled_itl, spread

_SIZE: Final = (12.0, 7.5)


def draw(run: LoadRun, title: str, path: Path) -> None:
    """Write a PNG; each kind of request has a colour."""
    # Figure without pyplot: no window system, no global state.
    figure = Figure(figsize=_SIZE, layout="constrained")
    grid = figure.add_gridspec(2, 2)
    ttft, itl = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
    over_time = figure.add_subplot(grid[1, :])
    kinds = sorted({record.request.kind for record in run.completed})
    for kind, color in zip(kinds, KINDS * len(kinds), strict=False):
        records = run.of_kind(kind)
        label = f"{kind}: {len(records)} requests" if kind else f"{len(records)} requests"
        _shares(ttft, [each for t in timings(records) if (each := t.ttft_s) is not None], label, color)
        _shares(itl, pooled_itl(timings(records)), label, color)
        _gaps(over_time, records, color)
    for axes, name in ((ttft, "TTFT"), (itl, "ITL")):
        axes.set(xlabel=f"{name} (ms)", ylabel="share at most, %", title=f"{name}: distribution")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    over_time.set(xlabel="seconds since the start of the run", ylabel="ITL (ms)", title="ITL over time")
    over_time.set_yscale("log")
    over_time.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    for axes in (ttft, itl, over_time):
        axes.grid(alpha=0.3)
    if kinds:
        ttft.legend(fontsize=9)
    figure.suptitle(title, fontsize=11)
    save_figure(figure, path)


def _shares(axes: Axes, values_s: Sequence[float], label: str, color: str) -> None:
    """The share of values that are at most so long, with a line at the 99th percentile."""
    values = sorted(value * 1e3 for value in values_s)
    if values:
        shares = [100 * (number + 1) / len(values) for number in range(len(values))]
        axes.step(values, shares, where="post", color=color, label=label)
        axes.axvline(percentile(values, 99), color=color, linestyle=":", linewidth=1)


def _gaps(axes: Axes, records: Sequence[RequestRecord], color: str) -> None:
    points = [
        (time_s, gap * 1e3)
        for record in records
        for time_s, gap in zip(record.timing.distinct_s[1:], record.timing.itl_s, strict=True)
    ]
    if points:
        times, gaps = zip(*points, strict=True)
        axes.scatter(times, gaps, s=5, alpha=0.5, color=color, linewidths=0)


_WIDTH: Final = 50
_TITLES: Final = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
_COUNTS: Final = (
    ("Successful requests", "completed"),
    ("Failed requests", "failed"),
    ("Maximum request concurrency", "max_concurrency"),
    ("Request rate configured (RPS)", "request_rate"),
    ("Benchmark duration (s)", "duration"),
    ("Total input tokens", "total_input_tokens"),
    ("Total generated tokens", "total_output_tokens"),
    ("Request throughput (req/s)", "request_throughput"),
    ("Request goodput (req/s)", "request_goodput"),
    ("Output token throughput (tok/s)", "output_throughput"),
    ("Peak output token throughput (tok/s)", "max_output_tokens_per_s"),
    ("Peak concurrent requests", "max_concurrent_requests"),
    ("Total token throughput (tok/s)", "total_token_throughput"),
)
_VISIBLE_MS: Final = 1.0  # a delay of sending above it gets lines of its own


def result_lines(
    result: Mapping[str, Any], metrics: Sequence[str], percentiles: Sequence[float]
) -> Iterator[str]:
    """The table: counts and rates, then each of `metrics`."""
    yield " Serving Benchmark Result ".center(_WIDTH, "=")
    for title, key in _COUNTS:
        if result.get(key) not in (None, "inf"):
            yield _line(title, result[key])
    if result.get("cached_tokens"):
        share = result["cached_tokens"] / max(1, result["total_input_tokens"])
        yield _line("Input tokens from the prefix cache", f"{share:.1%}")
    for name in metrics:
        yield _TITLES[name].center(_WIDTH, "-")
        yield from _latency_lines(name, result, percentiles)
    late = result.get("from_arrival")
    if late and result["max_send_delay_ms"] > _VISIBLE_MS:
        yield "From the scheduled arrival".center(_WIDTH, "-")
        for name in ("ttft", "e2el"):
            yield from _latency_lines(name, late, percentiles)
        yield _line("Longest delay of sending (ms)", result["max_send_delay_ms"])
    yield "=" * _WIDTH


def note_lines(result: Mapping[str, Any], run: LoadRun) -> Iterator[str]:
    """What a reader of the numbers must know: who counted the tokens, which requests failed and how."""
    ways = {"usage": "the server's usage", "tokenizer": "the local tokenizer", "chunks": "one per chunk"}
    counted = ", ".join(
        f"{ways[how]} ({number} requests)" for how, number in result["tokens_counted_by"].items()
    )
    if counted:
        yield f"tokens counted by: {counted}"
    num_tokens = sum(len(record.token_s) for record in run.completed)
    num_times = sum(len(record.timing.distinct_s) for record in run.completed)
    if num_times < num_tokens:
        yield (f"{num_tokens:,} tokens came in {num_times:,} deliveries; ITL is the gap between two")
    off = [r for r in run.completed if r.usage and r.usage.prompt_tokens != r.request.num_prompt_tokens]
    if at_once := sum(record.is_read_at_once for record in run.completed):
        said = f"{plural(at_once, 'answer')} in one read"
        yield f"{said}: their gaps show on a quieter machine, or without a proxy in between"
    if off:
        first = off[0]
        yield (
            f"the server counts other lengths for {len(off)} prompts: {first.num_prompt_tokens} tokens "
            f"there, {first.request.num_prompt_tokens} here"
        )
    short = sum(len(r.token_s) < r.request.max_tokens for r in run.completed)
    if short:
        yield f"{short} answers ended early: --ignore-eos asks the server for full length"
    if run.failed:
        yield f"first error of {len(run.failed)}: {run.failed[0].error}"


def print_kinds(run: LoadRun) -> None:
    """A row for each kind of request, when there are several."""
    kinds = sorted({record.request.kind for record in run.completed})
    if len(kinds) < 2:
        return
    titles = "kind", "requests", "TTFT p50 ms", "TTFT p99 ms", "ITL p50 ms", "ITL p99 ms", "ITL max ms"
    rows = []
    for kind in kinds:
        times = timings(run.of_kind(kind))
        ttft, itl = spread(timing.ttft_s for timing in times), spread(pooled_itl(times))
        values = [ttft.p50_s, ttft.p99_s] if ttft else []
        values += [itl.p50_s, itl.p99_s, itl.max_s] if itl else []
        cells = [f"{each * 1e3:.2f}" for each in values]
        rows.append([kind, str(len(times)), *cells, *["-"] * (5 - len(cells))])
    print_table([Column(titles[0], KEEP, is_left=True), *(Column(title, KEEP) for title in titles[1:])], rows)


def _latency_lines(name: str, source: Mapping[str, Any], percentiles: Sequence[float]) -> Iterator[str]:
    keys = {"Mean": "mean", "Median": "median"} | {f"P{each:g}": f"p{each:g}" for each in percentiles}
    for title, key in keys.items():
        value = source[f"{key}_{name}_ms"]
        yield _line(f"{title} {name.upper()} (ms)", "-" if value is None else value)
    if name == "itl" and source["max_itl_ms"] is not None:
        yield _line("Max ITL (ms)", source["max_itl_ms"])
        if source.get("p99_itl_ms") and source["median_itl_ms"]:
            yield _line("P99 over median ITL", source["p99_itl_ms"] / source["median_itl_ms"])


def _line(title: str, value: object) -> str:
    shown = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{title + ':':<40} {shown:<10}".rstrip()
