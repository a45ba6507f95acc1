"""`slo`: bursts on the real engine: whole prompts, fixed budgets, and the budget that follows an ITL SLO."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any, Final

from tiny_llm_lab.bench.harness import Variant, time_variants
from tiny_llm_lab.bench.latency import ITL_COLUMNS, TTFT_COLUMNS, Metrics, latencies, samples_of
from tiny_llm_lab.bench.report import Column, Ratio, Row, Section
from tiny_llm_lab.bench.run import Request, Run
from tiny_llm_lab.bench.sample import serve_with_engine
from tiny_llm_lab.interleave import interleave
from tiny_llm_lab.simulate.traffic import LengthKind, draw_requests
from tiny_llm_lab.steps.calibration import THOROUGH, calibrate
from tiny_llm_lab.steps.shapes import chunk, decodes
from tiny_llm_lab.types import SchedulerConfig, Timing

from .config import BenchConfig

STATIC: Final = (16, 32, 64, 128, 256, 512)
UNCHUNKED, POLICY = "whole prompts", "SLO policy"
_MAX_SEQS: Final = 32
# The ITL SLO in decode steps, and the TTFT SLO in prefills of a whole long prompt.
_ITL_STEPS, _TTFT_PREFILLS = 5.0, 4.0
_SHARES: Final = (0.75, 0.25)  # of short prompts with long answers, and of the opposite
_SHORT, _SHORT_ANSWER, _LONG_ANSWER = 32, 32, 8
_LONGEST: Final = 1536
_LONG_SHARE: Final = 0.08  # of a run, that the prefill of a long prompt takes at most
_BURSTINESS: Final = 0.3
_LOAD: Final = 0.6  # of what the machine could compute
_FEWEST: Final = 12
_MOST_CHUNK: Final = 512
_COLUMNS: Final = (
    Column("goodput", "goodput/s", ".2f"),
    Column("attainment", "inside", ".0%"),
    *ITL_COLUMNS,
    *TTFT_COLUMNS,
    Column("output_tokens_per_s", "out tok/s", ".1f"),
)


@dataclass(frozen=True)
class StepCosts:
    """Measured: a decode step of the streams, a prompt token in a chunk; samples of step times for a fit."""

    decode_s: float
    token_s: float
    samples: Sequence[Any]


@dataclass(frozen=True)
class Load:
    """The requests of every run, and the SLOs that they are served under."""

    requests: tuple[Request, ...]
    itl_slo_s: float
    ttft_slo_s: float

    @property
    def longest(self) -> int:
        return max(request.num_tokens for request in self.requests)


def slo(config: BenchConfig) -> Section:
    """Every budget once a round, on the same requests at the same times."""
    costs = measured_costs(config)
    load = bursts(config, costs)
    names = [UNCHUNKED, *(f"budget {budget}" for budget in STATIC), POLICY]
    runs: dict[str, list[Metrics]] = {name: [] for name in names}
    errors: list[Any] = []
    for _, name in interleave(names, config.repeats):
        engine = engine_for(config, costs, load, name)
        try:
            runs[name].append(goodput_metrics(serve_with_engine(engine, load.requests, config.seed)[0], load))
            if engine.pacer is not None:
                errors.append(engine.pacer.policy.model.error())
        finally:
            engine.release()
    return section(runs, load, costs, errors)


def measured_costs(config: BenchConfig) -> StepCosts:
    """Own decode and chunk steps in turns, and a calibration for the policy."""
    riders, piece = decodes(config.streams, config.context), chunk(config.context, config.chunk)
    with config.runner([riders, piece]) as runner:
        variants = [
            Variant("decode", partial(runner.run, riders)),
            Variant("chunk", partial(runner.run, piece)),
        ]
        seconds = time_variants(variants, config.rounds)
    token_s = median(seconds["chunk"]) / config.chunk
    long = long_prompt(config, token_s)
    steps = THOROUGH.steps(2 * long, min(_MOST_CHUNK, long))
    samples = calibrate(config.model, config.llm, steps, limit_s=math.inf)
    return StepCosts(median(seconds["decode"]), token_s, samples)


def long_prompt(config: BenchConfig, token_s: float) -> int:
    """Tokens of a long prompt: several fit into a run, whatever the machine."""
    return max(_SHORT * 4, min(_LONGEST, config.limit // 2, round(_LONG_SHARE * config.load_s / token_s)))


def bursts(config: BenchConfig, costs: StepCosts) -> Load:
    """Short prompts with long answers, long prompts with short ones, in bursts that fill `load_s`."""
    long = long_prompt(config, costs.token_s)
    kinds = (
        LengthKind(_SHARES[0], _SHORT, 0.3, _SHORT_ANSWER, 0.3),
        LengthKind(_SHARES[1], long, 0.2, _LONG_ANSWER, 0.3),
    )
    num_requests, rate = sized(kinds, costs, config.streams, config.load_s)
    drawn = draw_requests(num_requests, rate, _BURSTINESS, kinds, config.seed, config.limit)
    requests = tuple(
        Request("early", each.num_prompt_tokens, max(2, each.num_output_tokens), each.arrival_s)
        for each in drawn
    )
    return Load(requests, _ITL_STEPS * costs.decode_s, _TTFT_PREFILLS * long * costs.token_s)


def sized(kinds: Sequence[LengthKind], costs: StepCosts, streams: int, load_s: float) -> tuple[int, float]:
    """How many requests at which rate load the machine to `_LOAD` for about `load_s` seconds."""
    work_s = sum(
        kind.share * (kind.prompt_median * costs.token_s + kind.output_median * costs.decode_s / streams)
        for kind in kinds
    )
    rate = _LOAD / work_s
    return max(_FEWEST, round(rate * load_s)), rate


def engine_for(config: BenchConfig, costs: StepCosts, load: Load, name: str) -> Any:
    """The engine of one row of the table: whole prompts, a fixed budget, or the policy."""
    whole = load.longest + _MAX_SEQS
    fixed = None if name in (UNCHUNKED, POLICY) else int(name.split()[-1])
    scheduler = SchedulerConfig(
        max_num_batched_tokens=fixed or whole,
        max_num_seqs=min(_MAX_SEQS, fixed or _MAX_SEQS),  # every running request takes a token
        max_model_len=load.longest,
        enable_chunked_prefill=name != UNCHUNKED,
    )
    pacer = None
    if name == POLICY:
        # A model of its own for every run: corrections of one run are not passed to the next.
        policy = config.llm.LatencyPolicy(config.llm.StepTimeModel(costs.samples), load.itl_slo_s)
        pacer = config.llm.BudgetController(policy)
    num_tokens = sum(request.num_tokens for request in load.requests)
    return config.engine(scheduler, min(num_tokens, _MAX_SEQS * load.longest), budget_controller=pacer)


def goodput_metrics(run: Run, load: Load) -> dict[str, float | None]:
    """Latencies of a run; goodput counts requests inside both SLOs, per second."""
    num_good = sum(is_inside(timing, load.itl_slo_s, load.ttft_slo_s) for timing in run.timings)
    return latencies(run.timings) | {
        "total_s": run.total_s,
        "goodput": num_good / run.total_s,
        "attainment": num_good / len(run.timings),
        "output_tokens_per_s": run.output_tokens_per_s,
    }


def is_inside(timing: Timing, itl_slo_s: float, ttft_slo_s: float) -> bool:
    """Whether a request meets both SLOs; one late gap in a hundred is allowed, as in a p99."""
    num_late = sum(gap > itl_slo_s for gap in timing.itl_s)
    return (timing.ttft_s or 0.0) <= ttft_slo_s and num_late <= len(timing.itl_s) // 100


def section(
    runs: Mapping[str, Sequence[Metrics]], load: Load, costs: StepCosts, errors: Sequence[Any] = ()
) -> Section:
    """The table of medians, and the policy's goodput against the best fixed budget and whole prompts."""
    rows = {name: Row(name, samples_of(own)) for name, own in runs.items()}
    statics = [row for name, row in rows.items() if name not in (UNCHUNKED, POLICY)]
    meeting = [row for row in statics if row.median("itl_p99_s") <= load.itl_slo_s]
    notes = [
        f"{len(load.requests)} requests; "
        f"ITL SLO {load.itl_slo_s * 1e3:.1f} ms ({_ITL_STEPS:g} decode steps), "
        f"TTFT SLO {load.ttft_slo_s * 1e3:.0f} ms. Goodput: requests inside both, per second."
    ]
    if errors:
        p50, p90 = (median(getattr(error, name) for error in errors) for name in ("p50", "p90"))
        notes.append(f"Step-time prediction error of the policy: p50 {p50:.1%}, p90 {p90:.1%}.")
    others = [(UNCHUNKED, rows[UNCHUNKED])]
    if meeting:
        best = max(meeting, key=lambda row: row.median("goodput"))
        others.insert(0, (f"{best.name}, the best fixed one inside the ITL SLO", best))
    else:
        notes.append("No fixed budget has its p99 ITL inside the SLO: nothing to compare the policy with.")
    ratios = [
        Ratio.of(f"{title}, policy / {name}", rows[POLICY].samples[key], other.samples[key])
        for name, other in others
        for title, key in (("goodput", "goodput"), ("max ITL", "itl_max_s"))
    ]
    data = {
        "itl_slo_s": load.itl_slo_s,
        "ttft_slo_s": load.ttft_slo_s,
        "decode_s": costs.decode_s,
        "token_s": costs.token_s,
        "requests": [asdict(request) for request in load.requests],
        "policy_errors": [[error.count, error.p50, error.p90] for error in errors],
    }
    title = f"slo: {len(load.requests)} requests in bursts"
    return Section("slo", title, _COLUMNS, list(rows.values()), ratios, notes, data)
