"""From runs and limits to the keys of the JSON object and to a table."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from tiny_llm_lab.measure.bench.report import Column, Row, Section
from tiny_llm_lab.measure.bench.run import Run
from tiny_llm_lab.measure.bench.spec import Spec
from tiny_llm_lab.measure.bench.throughput.rates import rates_of
from tiny_llm_lab.runtime.native.compiling.limits import Limits
from tiny_llm_lab.serving.options.sampling_options import shown_sampling

METRICS: Final = ("prefill_tok_s", "decode_tok_s")
_LIMITS: Final = {
    "read_gb_s": "read {} GB/s",
    "f32_gflop_s": "f32 {} GFLOP/s",
    "bf16_gflop_s": "bf16 {} GFLOP/s",
    "int8_gop_s": "int8 {} GOP/s",
}
_COLUMNS: Final = (
    Column("prompt_len", "prompt", ".0f"),
    Column("prefill_tok_s", "prefill tok/s", has_spread=True),
    Column("decode_tok_s", "decode tok/s", has_spread=True),
    Column("decode_read_gb_s", "GB/s"),
    Column("share_of_limit", "of limit", ".0%"),
    Column("prefill_tok_s_ratio", "ours/this prefill", ".2f", unit="x"),
    Column("decode_tok_s_ratio", "decode", ".2f", unit="x"),
)
_NOTICEABLE: Final = 0.2  # of the limits from the start to the end


def section_of(
    runs: Mapping[Spec, Sequence[Run]], limits: Sequence[Limits], settings: Mapping[str, Any]
) -> Section:
    """A row for our solution, the first, and one for every variant of every peer."""
    limit_gb_s, rows = limit_of(runs, limits), list[Row]()
    for spec, own in runs.items():
        row = Row.of_runs(spec.title, [asdict(rates_of(run)) for run in own])
        single = {"prompt_len": [spec.requests[0].prompt_len]}
        share = [row.median("decode_read_gb_s") / limit_gb_s] if limit_gb_s else []
        base = rows[_compared(runs, spec.solution)] if rows else row
        ratios = {f"{key}_ratio": [base.median(key) / row.median(key)] for key in METRICS if rows}
        rows.append(Row(row.name, {**row.samples, **single, "share_of_limit": share, **ratios}))
    request, sampling = next(iter(runs)).requests[0], shown_sampling(next(iter(runs)).sampling)
    title = (
        f"{settings['model']}: {settings['batch']} x {request.prompt_len} tokens, "
        f"answers of {request.max_tokens}, {sampling}, {settings['threads']} threads, "
        f"median (min-max) of {settings['repeats']}"
    )
    return Section("throughput", title, _COLUMNS, rows, notes=[limits_line(limits)] if limits else [])


def _compared(runs: Mapping[Spec, Sequence[Run]], solution: str) -> int:
    """The place of our row that a solution is compared with; other engines are greedy, so our greedy one."""
    ours = next(iter(runs))
    return int(ours.sampling.temperature > 0 and solution != ours.solution)


def limit_of(runs: Mapping[Spec, Sequence[Run]], limits: Sequence[Limits]) -> float | None:
    """What a CPU can read, in GB/s; the most that was seen, because with less a share could pass 1."""
    on_gpu = next(iter(runs.values()))[0].facts.get("device") == "gpu"
    return None if on_gpu else max((each.read_gb_s for each in limits), default=None)


def result_of(
    runs: Mapping[Spec, Sequence[Run]], rows: Sequence[Row], limits: Sequence[Limits]
) -> dict[str, Any]:
    """Our own numbers and the best of each peer by name, for scripts; the rows have all samples."""
    ours, own = rows[0], next(iter(runs))
    first, request = runs[own][0], own.requests[0]
    peers: dict[str, dict[str, Row]] = {}
    for spec, row in list(zip(runs, rows, strict=True))[1:]:
        peers.setdefault(spec.solution, {})[spec.variant] = row
    singles = (*METRICS, "decode_step_s", "decode_read_gb_s")
    shown = ours.to_json()["metrics"]
    return {
        **{key: ours.median(key) for key in singles},
        "spread": {key: {end: shown[key][end] for end in ("min", "max")} for key in METRICS},
        "share_of_limit": next(iter(ours.samples["share_of_limit"]), None),
        "weights_bytes": first.weights_bytes,
        "prompt_len": request.prompt_len,
        "output_len": request.max_tokens,
        "facts": first.facts,
        "limits": [asdict(measured) for measured in limits],
        **{
            name: max((getattr(each, name) or 0.0 for each in limits), default=0.0) or None
            for name in _LIMITS
        },
        "limit_gb_s": limit_of(runs, limits),
        "peers": {name: _peer(each, rows[_compared(runs, name)]) for name, each in peers.items()},
    }


def _peer(variants: Mapping[str, Row], ours: Row) -> dict[str, Any]:
    """The best of a peer's variants for each metric, and how ours compares with it."""
    best = {key: max(variants, key=lambda name: variants[name].median(key)) for key in METRICS}
    rates = {key: variants[name].median(key) for key, name in best.items()}
    return rates | {
        "ratio": {key: ours.median(key) / rate for key, rate in rates.items()},
        "best_variant": best,
    }


def limits_line(limits: Sequence[Limits]) -> str:
    """The machine's limits, at the start and at the end."""
    sentences = []
    for name, text in _LIMITS.items():
        values = [getattr(measured, name) for measured in limits]
        shown = " then ".join(f"{value:.1f}" for value in values if value is not None)
        sentences.append(text.format(shown) if shown else f"{text.split()[0]} none")
    return f"Limits with {limits[0].threads} threads, before then after: {', '.join(sentences)}."


def drift_line(limits: Sequence[Limits]) -> str | None:
    """A warning if the machine became faster or slower during the run; None if it did not."""
    for title, name in (("memory bandwidth", "read_gb_s"), ("f32 peak", "f32_gflop_s")):
        values = [getattr(measured, name) for measured in limits]
        change = max(values) / min(values) - 1
        if change > _NOTICEABLE:
            return (
                f"the {title} differs by {change:.0%} between start and end, because other programs are "
                "running, so do not trust absolute rates: compare only interleaved ratios"
            )
    return None
