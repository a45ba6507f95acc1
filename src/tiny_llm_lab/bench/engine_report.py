"""From samples and limits to one JSON object and one table."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Final

from rich import box
from rich.table import Table

from tiny_llm_lab.native.limits import Limits

from .contenders import Contender

METRICS: Final = ("prefill_tok_s", "decode_tok_s")
_NOTICEABLE: Final = 0.2  # of the limits from the start to the end


def result_of(
    fighters: Sequence[Contender], limits: Sequence[Limits], settings: dict[str, Any], skipped: dict[str, str]
) -> dict[str, Any]:
    """The whole result; `fighters` begins with our own, `limits` are those of the start and the end."""
    ours = fighters[0]
    on_gpu = ours.samples[0]["facts"].get("device") == "gpu"
    # A limit is the most that was seen: with the lesser one a share could pass 1.
    limit_gb_s = None if on_gpu else _most(limits, lambda measured: measured.read_gb_s)
    summary = _summary(ours, limit_gb_s)
    names = list(dict.fromkeys(fighter.name for fighter in fighters[1:]))
    groups = {name: [f for f in fighters[1:] if f.name == name and f.samples] for name in names}
    return {
        "benchmark": "engine",
        **settings,
        **summary,
        "limit_gb_s": limit_gb_s,
        "f32_gflop_s": _most(limits, lambda measured: measured.f32_gflop_s),
        "bf16_gflop_s": _most(limits, lambda measured: measured.bf16_gflop_s),
        "int8_gop_s": _most(limits, lambda measured: measured.int8_gop_s),
        "limits": [vars(measured) for measured in limits],
        "peers": {name: _peer(group, summary, limit_gb_s) for name, group in groups.items() if group},
        "skipped": skipped,
    }


def table_of(result: dict[str, Any], plain: bool) -> Table:
    """A row for our solution and one for every variant of every peer."""
    table = Table(
        box=None if plain else box.SIMPLE_HEAD, pad_edge=False, title=_title(result), title_justify="left"
    )
    table.add_column("engine", no_wrap=True)
    columns = ("prompt", "prefill tok/s", "decode tok/s", "GB/s", "of limit", "ours/this prefill", "decode")
    for title in columns:
        table.add_column(title, justify="right", no_wrap=True)
    rounding = f", {bits}-bit activations" if (bits := result["activation_bits"]) else ""
    table.add_row(result["solution"] + rounding, *_cells(result))
    for name, peer in result["peers"].items():
        for variant in peer["variants"]:
            ratios = [f"{result[metric] / variant[metric]:.2f}x" for metric in METRICS]
            table.add_row(f"{name} {variant['variant']}".strip(), *_cells(variant), *ratios)
    return table


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
        shown = " then ".join("no instructions" if value is None else f"{value:.1f}" for value in values)
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
                "so rates mean little and only ratios of rates taken in turns something"
            )
    return None


def _title(result: dict[str, Any]) -> str:
    work = f"{result['batch']} x {result['prompt_len']} tokens, answers of {result['output_len']}"
    how = f"{result['threads']} threads, median (min-max) of {result['repeats']}"
    return f"{result['model']}: {work}, {how}"


def _cells(summary: dict[str, Any]) -> list[str]:
    rates = []
    for metric in METRICS:
        spread = summary["spread"][metric]
        rates.append(f"{summary[metric]:.1f} ({spread['min']:.1f}-{spread['max']:.1f})")
    share = summary["share_of_limit"]
    return [
        str(summary["prompt_len"]),
        *rates,
        f"{summary['decode_read_gb_s']:.1f}",
        "-" if share is None else f"{share:.0%}",
    ]


def _peer(group: Sequence[Contender], ours: dict[str, Any], limit_gb_s: float | None) -> dict[str, Any]:
    """The best of a peer's variants for each metric, how ours compares with it, and all of them."""
    variants = [{"variant": f.variant, **_summary(f, limit_gb_s)} for f in group]
    peer: dict[str, Any] = {"prompt_len": variants[0]["prompt_len"], "output_len": variants[0]["output_len"]}
    spread, ratio, best = {}, {}, {}
    for metric in METRICS:
        winner = max(variants, key=lambda variant: float(variant[metric]))
        peer[metric] = winner[metric]
        spread[metric], best[metric] = winner["spread"][metric], winner["variant"]
        ratio[metric] = ours[metric] / winner[metric]
    return peer | {"spread": spread, "ratio": ratio, "best_variant": best, "variants": variants}


def _summary(fighter: Contender, limit_gb_s: float | None) -> dict[str, Any]:
    samples = fighter.samples
    read_gb_s = median(_read_gb_s(sample, fighter.spec.batch) for sample in samples)
    return {
        **{metric: median(sample[metric] for sample in samples) for metric in METRICS},
        "spread": {
            metric: {
                "min": min(sample[metric] for sample in samples),
                "max": max(sample[metric] for sample in samples),
            }
            for metric in METRICS
        },
        "decode_step_s": median(sample["decode_step_s"] for sample in samples),
        "weights_bytes": samples[0]["weights_bytes"],
        "decode_read_gb_s": read_gb_s,
        "share_of_limit": None if limit_gb_s is None else read_gb_s / limit_gb_s,
        "prompt_len": fighter.spec.prompt_len,
        "output_len": fighter.spec.output_len,
        "facts": samples[0]["facts"],
        "samples": samples,
    }


def _read_gb_s(sample: dict[str, Any], batch: int) -> float:
    """What a decode step must read, weights once and the keys and values of every request, per second."""
    kv_bytes = batch * sample["context"] * sample["kv_bytes_per_token"]
    return float((sample["weights_bytes"] + kv_bytes) / sample["decode_step_s"] / 1e9)


def _most(limits: Sequence[Limits], of: Callable[[Limits], float | None]) -> float | None:
    return max((value for measured in limits if (value := of(measured)) is not None), default=None)
