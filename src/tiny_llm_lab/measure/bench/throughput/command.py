"""`bench`: tokens per second of a solution, compared with the machine's limits and other engines."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median
from typing import Any, Final

import mlx.core as mx

from tiny_llm_lab.measure.bench.flags import random_bits, shown_model
from tiny_llm_lab.measure.bench.fresh import Sweep
from tiny_llm_lab.measure.bench.host import host_facts
from tiny_llm_lab.measure.bench.peer import NO_PEERS, Peer
from tiny_llm_lab.measure.bench.report import Column, Report, Row, Section
from tiny_llm_lab.measure.bench.run import Run
from tiny_llm_lab.measure.bench.spec import Schedule, Spec, at_once
from tiny_llm_lab.runtime.console.field_flags import (
    add_field_flags,
    at_least,
    at_least_one,
    flag,
    given_fields,
)
from tiny_llm_lab.runtime.console.talk import log, plural
from tiny_llm_lab.runtime.models.config.model_config import read_config
from tiny_llm_lab.runtime.models.registry import find_folder
from tiny_llm_lab.runtime.models.weights.activation_bits import AUTO
from tiny_llm_lab.runtime.models.weights.quantization import Fp8Blocks
from tiny_llm_lab.runtime.native.compiling.limits import Limits, measure
from tiny_llm_lab.runtime.native.settings import usable_cores
from tiny_llm_lab.serving.options import model_options
from tiny_llm_lab.serving.options.sampling_options import add_draw_arguments, shown_sampling
from tiny_llm_lab.types import SamplingParams, UserError

MIN_STEPS: Final = 4
# Tokens of the last request to start that are not counted: its first, which prefill made, its second, whose
# step began before it was in the batch, and its last, which may come after the end of a request before it.
_EDGE_TOKENS: Final = 3
# Prompts whose prefills differ more than this were computed together: their own times mean nothing.
_MAX_SPREAD: Final = 10


@dataclass(frozen=True)
class Rates:
    """What one run of equal requests shows; `context` is the mean number of tokens stored per request."""

    prefill_tok_s: float
    decode_tok_s: float
    decode_step_s: float
    context: float
    # What a decode step must move: weights, keys and values of all requests, and their states there and back.
    decode_read_gb_s: float


def needed_output_len(batch: int, prompt_len: int, prefill_step: int) -> int:
    """The shortest answer that leaves MIN_STEPS full decode steps when prefill and decode alternate."""
    chunks = -(-prompt_len // prefill_step)
    return (batch - 1) * chunks + _EDGE_TOKENS + MIN_STEPS


def rates_of(run: Run) -> Rates:
    """Rates of a run whose requests all arrived at its start.

    Raises UserError when too few steps decoded every request.
    """
    tokens, step_s, context = _decode(run)
    own_bytes = context * run.kv_bytes_per_token + 2 * run.state_bytes
    num_bytes = run.weights_bytes + len(run.requests) * own_bytes
    return Rates(_prefill(run), tokens / step_s, step_s, context, num_bytes / step_s / 1e9)


def _prefill(run: Run) -> float:
    """Tokens per second: of the median prompt, or of all when they were computed together."""
    own_s = [0.0] * len(run.requests)
    for chunk in run.chunks:
        own_s[chunk.prompt_idx] += chunk.end_s - chunk.start_s
    lengths = [request.prompt_len for request in run.requests]
    if max(own_s) > _MAX_SPREAD * min(own_s):
        total_s = max(chunk.end_s for chunk in run.chunks) - min(chunk.start_s for chunk in run.chunks)
        return sum(lengths) / total_s
    return median(length / own for length, own in zip(lengths, own_s, strict=True))


def _decode(run: Run) -> tuple[float, float, float]:
    """Tokens per step, seconds per step and mean context, while every request was decoding."""
    last = max(run.timings, key=lambda timing: timing.token_s[0])
    start_s = last.token_s[1]
    first_end_s = min(timing.token_s[-1] for timing in run.timings)
    steps = [time_s for time_s in last.token_s if start_s < time_s <= first_end_s]
    if len(steps) < MIN_STEPS:
        raise UserError(
            f"--output-len leaves {plural(len(steps), 'step')} in which all requests decode: "
            f"raise it by {MIN_STEPS - len(steps)} or more"
        )
    contexts = [
        request.prompt_len + place
        for request, timing in zip(run.requests, run.timings, strict=True)
        for place, time_s in enumerate(timing.token_s)
        if start_s < time_s <= steps[-1]
    ]
    return len(contexts) / len(steps), (steps[-1] - start_s) / len(steps), fmean(contexts)


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


HELP = "Measure prefill and decode speed, and compare it with the machine's limits and other engines."
MLX_LM: Final = "mlx-lm"
# A CPU computes two or three tokens per second with mlx-lm; its rate hardly depends on these lengths.
SLOW_PROMPT_LEN: Final = 16
SLOW_OUTPUT_LEN: Final = 8
# What a peer needs: its first token, a step that is left out, and enough to measure.
_MIN_PEER_OUTPUT: Final = MIN_STEPS + 3
_AS_OURS: Final = "tokens in every baseline's {} (default: ours, but at most {} for mlx-lm on a CPU)"


@dataclass(frozen=True)
class Sizes:
    """The flags that are numbers."""

    prompt_len: int = flag(512, "tokens in every prompt", at_least_one)
    output_len: int = flag(32, "tokens in every answer", at_least_one)
    batch: int = flag(1, "requests that run at a time", at_least_one)
    repeats: int = flag(3, "number of fresh processes for each engine", at_least_one)
    threads: int = flag(usable_cores(), "threads of every engine (default: one per core)", at_least_one)
    prefill_step: int | None = flag(None, "most tokens in a chunk (default: the whole prompt)", at_least_one)
    baseline_prompt_len: int | None = flag(None, _AS_OURS.format("prompt", SLOW_PROMPT_LEN), at_least_one)
    baseline_output_len: int | None = flag(
        None, _AS_OURS.format("answer", SLOW_OUTPUT_LEN), at_least(_MIN_PEER_OUTPUT)
    )


def add_arguments(parser: ArgumentParser, peers: Mapping[str, Peer] = NO_PEERS) -> None:
    """The flags; `peers` are the engines that --baselines takes besides mlx-lm."""
    model_options.add_model_arguments(parser, random_bits=4)
    add_field_flags(parser, Sizes)
    model_options.add_activation_bits(parser)
    model_options.add_async_scheduling(parser)
    add_draw_arguments(parser)
    about = f"engines to compare with, separated by commas: {', '.join((MLX_LM, *peers))}"
    parser.add_argument("--baselines", default="", help=about)
    parser.add_argument("--json", action="store_true", help="print the result as the last line, in JSON")


def run(args: Namespace, peers: Mapping[str, Peer] = NO_PEERS) -> int:
    """Measure, with `peers` as in `add_arguments`."""
    sizes = Sizes(**given_fields(args, Sizes))
    ours, names = checked(args, sizes, peers)
    ours = ours.drawn(args)
    skipped: dict[str, str] = {}
    plain = replace(ours, sampling=SamplingParams(), variant=f"{ours.variant} greedy".strip())
    exact = [replace(ours, activation_bits=16, variant="exact activations")] if ours.variant else []
    own = [ours, *([plain] if ours.sampling.temperature else []), *exact]
    specs = [*own, *_baselines(ours, sizes, {name: peers.get(name) for name in names}, skipped)]
    facts, limits, report = host_facts(), _limits(sizes.threads), Report(args.json)
    sweep = Sweep(specs, num_required=1, peers=peers)
    sweep.measure(sizes.repeats, _shown)
    limits += _limits(sizes.threads) if limits else []
    if limits and (warning := drift_line(limits)):
        log(warning)
    settings = {
        "model": shown_model(ours.model),
        "solution": ours.solution,
        "activation_bits": ours.activation_bits,
        "sampling": shown_sampling(ours.sampling),
        "async_scheduling": ours.async_scheduling,
        "batch": sizes.batch,
        "threads": sizes.threads,
        "repeats": sizes.repeats,
        "prefill_step": ours.schedule.prefill_step,
    }
    # The settings are at the top level too, where scripts expect them.
    section = section_of(sweep.runs, limits, settings)
    report.add(section)
    result = result_of(sweep.runs, section.rows, limits)
    report.end("throughput", settings, facts, **settings, **result, skipped=skipped | sweep.failures)
    return 0


def checked(args: Namespace, sizes: Sizes, peers: Mapping[str, Peer] = NO_PEERS) -> tuple[Spec, list[str]]:
    """What to measure, and the names of the baselines; raises UserError for sizes that don't work."""
    names = list(dict.fromkeys(filter(None, (name.strip() for name in args.baselines.split(",")))))
    for name in names:
        if name not in (MLX_LM, *peers):
            raise UserError(f"unknown baseline {name!r}: choose from {', '.join((MLX_LM, *peers))}")
    step = sizes.prefill_step or sizes.prompt_len
    needed = needed_output_len(sizes.batch, sizes.prompt_len, step)
    if sizes.output_len < needed:
        raise UserError(
            f"--output-len {sizes.output_len} leaves fewer than {MIN_STEPS} steps in which all "
            f"{sizes.batch} requests decode: choose {needed} or more"
        )
    spec = Spec.from_args(
        args,
        random_bits(model_options.model_name(args)),
        schedule=Schedule(step),
        batch_size=sizes.batch,
        requests=at_once(sizes.batch, sizes.prompt_len, sizes.output_len),
        async_scheduling=model_options.async_scheduling(args),
        threads=sizes.threads,
        activation_bits=args.activation_bits,
        variant="8-bit activations" if args.activation_bits == 8 else "",
    )
    return spec, names


def _baselines(
    ours: Spec, sizes: Sizes, asked: Mapping[str, Peer | None], skipped: dict[str, str]
) -> Iterator[Spec]:
    """Every variant of the baselines; `skipped` gets the reason where one is not installed."""
    for name, peer in asked.items():
        if peer and (missing := peer.missing()):
            skipped[name] = missing
            log(f"{name} is left out: {missing}")
            continue
        lengths = _peer_lengths(sizes, name, ours.device)
        if lengths != (sizes.prompt_len, sizes.output_len):
            log(f"{name}: prompts of {lengths[0]} and answers of {lengths[1]} tokens, unlike our own run")
        yield from baseline_specs(name, peer, ours, *lengths)


def baseline_specs(name: str, peer: Peer | None, ours: Spec, prompt_len: int, output_len: int) -> list[Spec]:
    """A spec for each variant of the baseline `name`; mlx-lm is no peer and has one."""
    spec = replace(
        ours,
        solution=name,
        requests=at_once(ours.batch_size, prompt_len, output_len),
        schedule=Schedule(prompt_len),
        activation_bits=AUTO,
        sampling=SamplingParams(),
        async_scheduling=None,
    )
    variants = peer.variants(_bits(ours.model)) if peer else ("",)
    return [replace(spec, variant=variant) for variant in variants]


def _bits(model: str) -> int:
    """Of most of a model's weights."""
    _, quantization = read_config(find_folder(model) / "config.json")
    if quantization is None:
        return 16
    return 8 if isinstance(quantization.default, Fp8Blocks) else quantization.default.bits


def _peer_lengths(sizes: Sizes, name: str, device: str | None) -> tuple[int, int]:
    on_cpu = device == "cpu" or (device is None and mx.default_device() == mx.cpu)
    prompt_len, output_len = sizes.prompt_len, max(sizes.output_len, _MIN_PEER_OUTPUT)
    if name == MLX_LM and on_cpu:
        prompt_len, output_len = min(prompt_len, SLOW_PROMPT_LEN), min(output_len, SLOW_OUTPUT_LEN)
    return sizes.baseline_prompt_len or prompt_len, sizes.baseline_output_len or output_len


def _shown(run: Run) -> str:
    rates = rates_of(run)
    return f"prefill {rates.prefill_tok_s:.1f}, decode {rates.decode_tok_s:.1f} tok/s"


def _limits(threads: int) -> list[Limits]:
    try:
        return [measure(threads)]
    except UserError as error:
        log(f"we could not measure this machine's limits: {error}")
        return []
