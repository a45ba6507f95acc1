"""From runs and limits to the keys of the JSON object and to a table."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any, Final

from tiny_llm_lab.bench.report import Column, Row, Section
from tiny_llm_lab.bench.run import Run
from tiny_llm_lab.bench.spec import Spec
from tiny_llm_lab.native.limits import Limits

from .rates import rates_of

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


def result_of(runs: Mapping[Spec, Sequence[Run]], limits: Sequence[Limits]) -> dict[str, Any]:
    """All that was measured; `runs` begin with our own, `limits` are those of the start and the end."""
    # A limit is the most that was seen: with the lesser one a share could pass 1.
    most = {
        name: max((value for each in limits if (value := getattr(each, name)) is not None), default=None)
        for name in _LIMITS
    }
    ours, *others = runs
    on_gpu = runs[ours][0].facts.get("device") == "gpu"
    limit_gb_s = None if on_gpu else most.pop("read_gb_s")
    summary = _summary(ours, runs[ours], limit_gb_s)
    peers: dict[str, list[dict[str, Any]]] = {}
    for spec in others:
        variant = {"variant": spec.variant, **_summary(spec, runs[spec], limit_gb_s)}
        peers.setdefault(spec.solution, []).append(variant)
    return {
        **summary,
        **most,
        "limit_gb_s": limit_gb_s,
        "limits": [asdict(measured) for measured in limits],
        "peers": {name: _peer(variants, summary) for name, variants in peers.items()},
    }


def section_of(result: Mapping[str, Any], limits: Sequence[Limits]) -> Section:
    """A row for our solution and one for every variant of every peer."""
    rounding = f", {bits}-bit activations" if (bits := result["activation_bits"]) else ""
    rows = [_row(result["solution"] + rounding, result, {})]
    for name, peer in result["peers"].items():
        for variant in peer["variants"]:
            ratios = {f"{metric}_ratio": [result[metric] / variant[metric]] for metric in METRICS}
            rows.append(_row(f"{name} {variant['variant']}".strip(), variant, ratios))
    title = (
        f"{result['model']}: {result['batch']} x {result['prompt_len']} tokens, "
        f"answers of {result['output_len']}, {result['threads']} threads, "
        f"median (min-max) of {result['repeats']}"
    )
    return Section("throughput", title, _COLUMNS, rows, notes=[limits_line(limits)] if limits else [])


def limits_line(limits: Sequence[Limits]) -> str:
    """What the machine could do, at the start and at the end."""
    said = []
    for name, text in _LIMITS.items():
        values = [getattr(measured, name) for measured in limits]
        shown = " then ".join(f"{value:.1f}" for value in values if value is not None)
        said.append(text.format(shown) if shown else f"{text.split()[0]} none")
    return f"Limits with {limits[0].threads} threads, before then after: {', '.join(said)}."


def drift_line(limits: Sequence[Limits]) -> str | None:
    """A warning when the machine itself became faster or slower meanwhile; None when it did not."""
    for title, name in (("memory bandwidth", "read_gb_s"), ("f32 peak", "f32_gflop_s")):
        values = [getattr(measured, name) for measured in limits]
        change = max(values) / min(values) - 1
        if change > _NOTICEABLE:
            return (
                f"the {title} at the start and at the end differ by {change:.0%}: other programs run here, "
                "so absolute rates are unreliable; compare only interleaved ratios"
            )
    return None


def _row(name: str, summary: Mapping[str, Any], ratios: Mapping[str, list[float]]) -> Row:
    samples = {metric: [sample[metric] for sample in summary["samples"]] for metric in METRICS}
    single = {key: [summary[key]] for key in ("prompt_len", "decode_read_gb_s", "share_of_limit")}
    return Row(name, {**samples, **single, **ratios})


def _peer(variants: Sequence[Mapping[str, Any]], ours: Mapping[str, Any]) -> dict[str, Any]:
    """The best of a peer's variants for each metric, how ours compares with it, and all of them."""
    best = {metric: max(variants, key=lambda each: float(each[metric])) for metric in METRICS}
    return {
        "prompt_len": variants[0]["prompt_len"],
        "output_len": variants[0]["output_len"],
        **{metric: best[metric][metric] for metric in METRICS},
        "spread": {metric: best[metric]["spread"][metric] for metric in METRICS},
        "ratio": {metric: ours[metric] / best[metric][metric] for metric in METRICS},
        "best_variant": {metric: best[metric]["variant"] for metric in METRICS},
        "variants": list(variants),
    }


def _summary(spec: Spec, runs: Sequence[Run], limit_gb_s: float | None) -> dict[str, Any]:
    rates, first = [rates_of(run) for run in runs], runs[0]
    of = {metric: [getattr(rate, metric) for rate in rates] for metric in METRICS}
    # What a decode step must read: weights once, and the keys and values of every request.
    kv_bytes = [len(spec.requests) * rate.context * first.kv_bytes_per_token for rate in rates]
    read_gb_s = median(
        (first.weights_bytes + own) / rate.decode_step_s / 1e9
        for own, rate in zip(kv_bytes, rates, strict=True)
    )
    return {
        **{metric: median(values) for metric, values in of.items()},
        "spread": {metric: {"min": min(values), "max": max(values)} for metric, values in of.items()},
        "decode_step_s": median(rate.decode_step_s for rate in rates),
        "weights_bytes": first.weights_bytes,
        "decode_read_gb_s": read_gb_s,
        "share_of_limit": None if limit_gb_s is None else read_gb_s / limit_gb_s,
        "prompt_len": spec.requests[0].prompt_len,
        "output_len": spec.requests[0].max_tokens,
        "facts": first.facts,
        "samples": [asdict(rate) for rate in rates],
    }
