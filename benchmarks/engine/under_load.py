"""`peers`: the engine and mlx-lm's BatchGenerator on the same requests and the same checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Final

import mlx.core as mx

from benchmarks.engine.config import BenchConfig
from tiny_llm_lab.measure.bench.chunked.workload import EARLY_SHARE, Workload
from tiny_llm_lab.measure.bench.fresh import Sweep
from tiny_llm_lab.measure.bench.latency import columns, contention
from tiny_llm_lab.measure.bench.report import Ratio, Row, Section, ratios_of
from tiny_llm_lab.measure.bench.run import Run
from tiny_llm_lab.measure.bench.spec import Schedule, Spec
from tiny_llm_lab.runtime.models.weights.activation_bits import AUTO

_SHORT: Final = 24
_MLX_LM_STEP: Final = 2048  # BatchGenerator's own default
# Closer than this is neither a win nor a loss.
_EVEN: Final = 0.03
_SPEED: Final = "output_tokens_per_s"  # more of it is better; of every other metric less is
_COSTS: Final = "computed_per_useful itl_p99_s itl_max_s ttft_short_s ttft_long_s peak_bytes".split()
METRICS: Final = (_SPEED, *_COSTS)
_ABOUT: Final = (
    "Arrivals fit the speed of each engine. ITL is for the requests that decode while a long prompt "
    "is in prefill, TTFT short is for the late prompts. Peak memory is above the weights."
)


def peers(config: BenchConfig) -> Section:
    """Ours with a budget of one chunk and all streams; mlx-lm with the same chunk, and with its default."""
    workload = workload_of(config)
    sweep = Sweep([workload.calibrated(spec)[0] for spec in specs_of(config, workload)])
    sweep.measure(config.repeats)
    return section(sweep.runs, f"peers: {workload}, {config.sampling}")


def workload_of(config: BenchConfig) -> Workload:
    """Two long prompts of `context` tokens, and `streams` requests that decode when they come."""
    long = max(_SHORT + 1, min(config.context, config.limit // 2))
    num_short = round(config.streams / EARLY_SHARE)
    return Workload(
        num_long=2,
        long_tokens=long,
        long_max_tokens=4,
        num_short=max(2, num_short),
        short_tokens=_SHORT,
        max_tokens=64,
    )


def specs_of(config: BenchConfig, workload: Workload) -> list[Spec]:
    """Every engine with a slot for each request; arrivals still have to be calibrated."""
    slots = len(workload.requests())
    engine = Schedule(budget=config.chunk + slots)
    ours = replace(config.spec, schedule=engine, batch_size=slots, variant="engine")
    # On a CPU mlx-lm has a width of its own; elsewhere both take the same.
    dtype = None if mx.default_device() == mx.cpu else str(config.checkpoint.dtype).split(".")[-1]
    theirs = replace(ours, solution="mlx-lm", dtype=dtype, activation_bits=AUTO)
    steps = (config.chunk, _MLX_LM_STEP)
    return [ours, *(replace(theirs, schedule=Schedule(step), variant=str(step)) for step in steps)]


def section(runs: Mapping[Spec, Sequence[Run]], title: str) -> Section:
    """The table of medians, ours against each other one, and where ours loses."""
    own, *others = [Row.of_runs(spec.title, map(contention, each)) for spec, each in runs.items()]
    shown = columns(METRICS)
    ratios = [ratio for other in others for ratio in ratios_of(own, other, shown)]
    keys = METRICS * len(others)
    losses = [each.name for key, each in zip(keys, ratios, strict=True) if each and is_loss(key, each)]
    said = f"{own.name} is worse in: {'; '.join(losses)}." if losses else f"{own.name} is nowhere worse."
    dtypes = [f"{spec.title} computes in {each[0].facts['dtype']}" for spec, each in runs.items()]
    data = {"requests": {spec.title: [asdict(each) for each in spec.requests] for spec in runs}}
    notes = [f"{', '.join(dtypes)}.", _ABOUT, said]
    return Section("peers", title, shown, [own, *others], ratios, notes, data)


def is_loss(metric: str, ratio: Ratio) -> bool:
    """Whether the ratio, ours / theirs, is on the wrong side of 1 by more than a trifle."""
    return ratio.value < 1 - _EVEN if metric == _SPEED else ratio.value > 1 + _EVEN
