"""`peers`: the engine and mlx-lm's BatchGenerator on the same requests, the same checkpoint, in turns."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from statistics import median
from typing import Any, Final

import mlx.core as mx

from tiny_llm_lab.bench.latency import itl_metrics, ttfts_of
from tiny_llm_lab.bench.report import Column, Metrics, Ratio, Row, Section, measured_rows
from tiny_llm_lab.bench.run import Run, gaps_during, timings_of
from tiny_llm_lab.bench.sample import serve
from tiny_llm_lab.bench.spec import Request, prompts_of
from tiny_llm_lab.commands.options import Loaded, load
from tiny_llm_lab.types import SchedulerConfig

from .config import BenchConfig, free_memory

_SHORT: Final = 32
_STREAM_ANSWER, _LONG_ANSWER, _LATE_ANSWER = 64, 4, 8
_NUM_LONG, _NUM_LATE = 2, 2  # long prompts, and short ones right behind each
_FIRST_TOKENS: Final = 4
_MLX_LM_STEP: Final = 2048  # BatchGenerator's own default
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

# Serves requests once: the run, the tokens that were computed, and the peak memory in bytes.
Serve = Callable[[Sequence[Request]], tuple[Run, int, float]]


def peers(config: BenchConfig) -> Section:
    """Ours with a budget of one chunk and all streams; mlx-lm with the same chunk, and with its default."""
    # On a CPU `load` picks the width that mlx-lm computes in; elsewhere both take the same.
    dtype = None if mx.default_device() == mx.cpu else _name(config.checkpoint.dtype)
    loaded = load(str(config.checkpoint.name), "mlx-lm", dtype=dtype)
    engines: dict[str, Serve] = {"engine": partial(run_ours, config)}
    for step in (config.chunk, _MLX_LM_STEP):
        engines[f"mlx-lm {step}"] = partial(_run_mlx_lm, loaded, step, config.seed)
    requests = {name: _timed_workload(config, serve) for name, serve in engines.items()}
    rows = measured_rows(
        {
            name: partial(lambda own, each: metrics_of(*own(each)), own, requests[name])
            for name, own in engines.items()
        },
        config.repeats,
    )
    widths = [_name(each.dtype) for each in (loaded.checkpoint, config.checkpoint)]
    note = [] if widths[0] == widths[1] else [f"mlx-lm computes in {widths[0]}, ours in {widths[1]}."]
    long = max(request.prompt_len for request in requests["engine"])
    what = f"{config.streams} streams, {_NUM_LONG} prompts of {long} tokens, {_NUM_LATE} short behind each"
    data = {"requests": {name: [asdict(each) for each in own] for name, own in requests.items()}}
    return section(rows, f"peers: {what}", [*note, _ABOUT], data)


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


def _timed_workload(config: BenchConfig, serve: Serve) -> tuple[Request, ...]:
    """The requests for one engine, which is warmed up by learning how fast it is."""
    streams = workload(config, first_tokens_s=None)
    serve(streams)
    return workload(config, serve(streams)[0].total_s)


def run_ours(config: BenchConfig, requests: Sequence[Request]) -> tuple[Run, int, float]:
    """A budget of one chunk and all slots; blocks for all requests at once."""
    slots = len(requests)
    scheduler = SchedulerConfig(
        max_num_batched_tokens=config.chunk + slots,
        max_num_seqs=slots,
        max_model_len=max(request.num_tokens for request in requests),
    )
    held_bytes = free_memory()
    run, num_computed = serve(
        lambda on_step: config.engine(scheduler, useful_tokens(requests) + slots, on_step=on_step),
        requests,
        config.model.config.vocab_size,
        config.seed,
    )
    return run, num_computed, mx.get_peak_memory() - held_bytes


class CountingNetwork:
    """A network that counts the tokens it is given, padding included, and is otherwise the one inside."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.num_tokens = 0

    def __call__(self, tokens: mx.array, *args: Any, **kwargs: Any) -> Any:
        self.num_tokens += tokens.size
        return self._network(tokens, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


def _run_mlx_lm(loaded: Loaded, step: int, seed: int, requests: Sequence[Request]) -> tuple[Run, int, float]:
    model: Any = loaded.model
    counted = type(model)(model.config, CountingNetwork(model.network))
    held_bytes = free_memory()
    completions = loaded.solution.batch_generate(
        counted,
        loaded.checkpoint.tokenizer,
        prompts_of(requests, model.config.vocab_size, seed),
        max_seq_len=max(request.num_tokens for request in requests),
        batch_size=len(requests),
        prefill_step=step,
    )
    run = Run(tuple(requests), timings_of(requests, completions))
    return run, counted.network.num_tokens, mx.get_peak_memory() - held_bytes


def useful_tokens(requests: Sequence[Request]) -> int:
    """What has to be computed at least: everything but each answer's last token."""
    return sum(request.num_tokens - 1 for request in requests)


def metrics_of(run: Run, num_computed_tokens: int, peak_bytes: float) -> Metrics:
    """The metrics of one run; None where it had nothing to measure."""
    long = run.of_kind("long")
    itl = itl_metrics(gaps_during(run.of_kind("early"), [(each.arrival_s, each.token_s[0]) for each in long]))
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


def section(rows: Sequence[Row], title: str, notes: Sequence[str], data: dict[str, Any]) -> Section:
    """The table of medians, ours against each other one, and where ours loses."""
    own, *others = rows
    ratios = {
        (column.key, name := f"{column.title}, {own.name} / {other.name}"): Ratio.of(
            name, own.samples[column.key], other.samples[column.key]
        )
        for other in others
        for column in METRICS
    }
    losses = [name for (key, name), ratio in ratios.items() if ratio and is_loss(key, ratio)]
    said = f"{own.name} loses in: {'; '.join(losses)}." if losses else f"{own.name} loses nowhere."
    return Section("peers", title, METRICS, rows, list(ratios.values()), [*notes, said], data)


def is_loss(metric: str, ratio: Ratio) -> bool:
    """Whether the ratio, ours / theirs, is on the wrong side of 1 by more than a trifle."""
    return ratio.value < 1 - _EVEN if metric == _SPEED else ratio.value > 1 + _EVEN


def _name(dtype: mx.Dtype) -> str:
    return str(dtype).split(".")[-1]
