"""`peers`: the engine and mlx-lm's BatchGenerator on the same requests, the same checkpoint, in turns."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Final

from tiny_llm_lab.bench.latency import Metrics, itl_metrics, samples_of, ttfts_of
from tiny_llm_lab.bench.report import Column, Ratio, Row, Section
from tiny_llm_lab.bench.run import Request, Run, gaps_during
from tiny_llm_lab.interleave import interleave

from .config import BenchConfig
from .mlx_lm import mlx_lm_targets
from .peer_target import PeerTarget, own_target, useful_tokens

_SHORT: Final = 32
_STREAM_ANSWER, _LONG_ANSWER, _LATE_ANSWER = 64, 4, 8
_NUM_LONG, _NUM_LATE = 2, 2  # long prompts, and short ones right behind each
_FIRST_TOKENS: Final = 4
# Closer than this is neither a win nor a loss.
_EVEN: Final = 0.03
_SPEED: Final = "output_tokens_per_s"  # more of it is better; of every other metric less is
METRICS: Final = (
    Column(_SPEED, "out tok/s", ".1f"),
    Column("computed_per_useful", "computed/useful", ".2f"),
    Column("itl_p99_s", "ITL p99 ms", ".1f", 1e3),
    Column("itl_max_s", "ITL max ms", ".1f", 1e3),
    Column("ttft_short_s", "TTFT short ms", ".0f", 1e3),
    Column("ttft_long_s", "TTFT long ms", ".0f", 1e3),
    Column("peak_bytes", "peak MB", ".1f", 1e-6),
)
_ABOUT: Final = (
    "Long prompts come when an engine's own streams have their first tokens; ITL is that of the streams from "
    "then until the long prompts' first tokens. Peak memory is above what was held before, weights included."
)


def peers(config: BenchConfig) -> Section:
    """Ours with a budget of one chunk and all streams; mlx-lm with the same chunk, and with its default."""
    targets = [own_target(config), *mlx_lm_targets(config)]
    requests = {each.name: workload(config, _first_tokens_s(config, each)) for each in targets}
    runs: dict[str, list[Metrics]] = {target.name: [] for target in targets}
    for _, target in interleave(targets, config.repeats):
        runs[target.name].append(metrics_of(*target.run(requests[target.name])))
    long = max(request.prompt_len for request in requests[targets[0].name])
    title = (
        f"peers: {config.streams} streams, {_NUM_LONG} prompts of {long} tokens, "
        f"{_NUM_LATE} short behind each"
    )
    data = {"requests": {name: [asdict(each) for each in own] for name, own in requests.items()}}
    return section(runs, title, [*filter(None, (each.note for each in targets)), _ABOUT], data)


def workload(config: BenchConfig, first_tokens_s: float | None) -> tuple[Request, ...]:
    """The requests; None: the streams alone with a few tokens each, to learn how long these take.

    The first long prompt comes when the engine has given every stream some tokens, the next one as much
    later: a fast engine would have ended its streams before a slow one has begun them.
    """
    if first_tokens_s is None:
        return (Request("early", _SHORT, _FIRST_TOKENS),) * config.streams
    found = [Request("early", _SHORT, _STREAM_ANSWER)] * config.streams
    long = min(config.context, config.limit // 2)
    for number in range(_NUM_LONG):
        arrival_s = (number + 1.2) * first_tokens_s
        found.append(Request("long", long, _LONG_ANSWER, arrival_s))
        found += [Request("late", _SHORT, _LATE_ANSWER, arrival_s)] * _NUM_LATE
    return tuple(found)


def metrics_of(run: Run, num_computed_tokens: int, peak_bytes: float) -> dict[str, float | None]:
    """The metrics of one run; None where it had nothing to measure."""
    long = run.of_kind("long")
    gaps = gaps_during(run.of_kind("early"), [(each.arrival_s, each.token_s[0]) for each in long])
    itl = itl_metrics(gaps)
    return {
        "total_s": run.total_s,
        _SPEED: run.output_tokens_per_s,
        "computed_per_useful": num_computed_tokens / useful_tokens(run.requests),
        "itl_p99_s": itl["itl_p99_s"],
        "itl_max_s": itl["itl_max_s"],
        "ttft_short_s": median(ttfts_of(run.of_kind("late"))) if long else None,
        "ttft_long_s": median(ttfts_of(long)) if long else None,
        "peak_bytes": peak_bytes,
    }


def section(
    runs: Mapping[str, Sequence[Metrics]], title: str, notes: Sequence[str], data: Mapping[str, object]
) -> Section:
    """The table of medians, ours against each other one, and where ours loses."""
    own, *others = rows = [Row(name, samples_of(each)) for name, each in runs.items()]
    ratios, losses = [], []
    for other in others:
        for column in METRICS:
            name = f"{column.title}, {own.name} / {other.name}"
            ratio = Ratio.of(name, own.samples[column.key], other.samples[column.key])
            ratios.append(ratio)
            if ratio and is_loss(column.key, ratio):
                losses.append(name)
    said = f"{own.name} loses in: {'; '.join(losses)}." if losses else f"{own.name} loses nowhere."
    return Section("peers", title, METRICS, rows, ratios, [*notes, said], data)


def is_loss(metric: str, ratio: Ratio) -> bool:
    """Whether the ratio, ours / theirs, is on the wrong side of 1 by more than a trifle."""
    return ratio.value < 1 - _EVEN if metric == _SPEED else ratio.value > 1 + _EVEN


def _first_tokens_s(config: BenchConfig, target: PeerTarget) -> float:
    """How long this engine takes until every stream has a few tokens; warms it up as well."""
    streams = workload(config, first_tokens_s=None)
    target.run(streams)
    return target.run(streams)[0].total_s
