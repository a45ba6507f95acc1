"""From samples and limits to the keys of the JSON object and to a table."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from tiny_llm_lab.bench.report import Column, Row, Section
from tiny_llm_lab.native.limits import Limits

from .targets import BenchTarget

METRICS: Final = ("prefill_tok_s", "decode_tok_s")
_COLUMNS: Final = (
    Column("prompt_len", "prompt", ".0f"),
    Column("prefill_tok_s", "prefill tok/s", spread="beside"),
    Column("decode_tok_s", "decode tok/s", spread="beside"),
    Column("decode_read_gb_s", "GB/s"),
    Column("share_of_limit", "of limit", ".0%"),
    Column("prefill_tok_s_ratio", "ours/this prefill", ".2f", unit="x"),
    Column("decode_tok_s_ratio", "decode", ".2f", unit="x"),
)
_NOTICEABLE: Final = 0.2  # of the limits from the start to the end


def result_of(
    targets: Sequence[BenchTarget], limits: Sequence[Limits], batch: int, skipped: Mapping[str, str]
) -> dict[str, Any]:
    """All that was measured; `targets` begins with our own, `limits` are those of the start and the end."""
    ours = targets[0]
    on_gpu = ours.samples[0]["facts"].get("device") == "gpu"
    # A limit is the most that was seen: with the lesser one a share could pass 1.
    limit_gb_s = None if on_gpu else _most(limits, "read_gb_s")
    summary = _summary(ours, batch, limit_gb_s)
    groups: dict[str, list[dict[str, Any]]] = {}
    for target in targets[1:]:
        if target.samples:
            variant = {"variant": target.spec.variant, **_summary(target, batch, limit_gb_s)}
            groups.setdefault(target.spec.solution, []).append(variant)
    return {
        **summary,
        "limit_gb_s": limit_gb_s,
        **{name: _most(limits, name) for name in ("f32_gflop_s", "bf16_gflop_s", "int8_gop_s")},
        "limits": [vars(measured) for measured in limits],
        "peers": {name: _peer(variants, summary) for name, variants in groups.items()},
        "skipped": dict(skipped),
    }


def section_of(result: Mapping[str, Any], limits: Sequence[Limits]) -> Section:
    """A row for our solution and one for every variant of every peer."""
    rounding = f", {bits}-bit activations" if (bits := result["activation_bits"]) else ""
    rows = [_row(result["solution"] + rounding, result)]
    for name, peer in result["peers"].items():
        for variant in peer["variants"]:
            rows.append(_row(f"{name} {variant['variant']}".strip(), variant, result))
    title = (
        f"{result['model']}: {result['batch']} x {result['prompt_len']} tokens, "
        f"answers of {result['output_len']}, {result['threads']} threads, "
        f"median (min-max) of {result['repeats']}"
    )
    return Section("throughput", title, _COLUMNS, rows, notes=[limits_line(limits)] if limits else [])


def limits_line(limits: Sequence[Limits]) -> str:
    """What the machine could do, at the start and at the end."""
    said = []
    for title, name, unit in (
        ("read", "read_gb_s", "GB/s"),
        ("f32", "f32_gflop_s", "GFLOP/s"),
        ("bf16", "bf16_gflop_s", "GFLOP/s"),
        ("int8", "int8_gop_s", "GOP/s"),
    ):
        values = [getattr(measured, name) for measured in limits]
        shown = " then ".join(f"{value:.1f}" for value in values if value is not None)
        said.append(f"{title} none" if None in values else f"{title} {shown} {unit}")
    return f"Limits with {limits[0].threads} threads, before then after: {', '.join(said)}."


def drift_line(limits: Sequence[Limits]) -> str | None:
    """A warning when the machine itself became faster or slower meanwhile; None when it did not."""
    for title, values in (
        ("memory bandwidth", [measured.read_gb_s for measured in limits]),
        ("f32 peak", [measured.f32_gflop_s for measured in limits]),
    ):
        change = max(values) / min(values) - 1
        if change > _NOTICEABLE:
            return (
                f"the {title} at the start and at the end differ by {change:.0%}: other programs run here, "
                "so absolute rates are unreliable; compare only interleaved ratios"
            )
    return None


def _row(name: str, summary: Mapping[str, Any], ours: Mapping[str, Any] | None = None) -> Row:
    """A row of the table; with `ours` it says how ours compares."""
    samples = {metric: [sample[metric] for sample in summary["samples"]] for metric in METRICS}
    single = {key: [summary[key]] for key in ("prompt_len", "decode_read_gb_s", "share_of_limit")}
    ratios = (
        {} if ours is None else {f"{metric}_ratio": [ours[metric] / summary[metric]] for metric in METRICS}
    )
    return Row(name, samples | single | ratios)


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


def _summary(target: BenchTarget, batch: int, limit_gb_s: float | None) -> dict[str, Any]:
    samples = target.samples
    of = {metric: [sample[metric] for sample in samples] for metric in METRICS}
    read_gb_s = median(_read_gb_s(sample, batch) for sample in samples)
    return {
        **{metric: median(values) for metric, values in of.items()},
        "spread": {metric: {"min": min(values), "max": max(values)} for metric, values in of.items()},
        "decode_step_s": median(sample["decode_step_s"] for sample in samples),
        "weights_bytes": samples[0]["weights_bytes"],
        "decode_read_gb_s": read_gb_s,
        "share_of_limit": None if limit_gb_s is None else read_gb_s / limit_gb_s,
        "prompt_len": target.spec.requests[0].prompt_len,
        "output_len": target.spec.requests[0].max_tokens,
        "facts": samples[0]["facts"],
        "samples": samples,
    }


def _read_gb_s(sample: Mapping[str, Any], batch: int) -> float:
    """What a decode step must read, weights once and the keys and values of every request, per second."""
    kv_bytes = batch * sample["context"] * sample["kv_bytes_per_token"]
    return float((sample["weights_bytes"] + kv_bytes) / sample["decode_step_s"] / 1e9)


def _most(limits: Sequence[Limits], name: str) -> float | None:
    return max((value for each in limits if (value := getattr(each, name)) is not None), default=None)
