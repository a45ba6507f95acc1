"""`slo`: bursts on the real engine: whole prompts, fixed budgets, and the budget that follows an ITL SLO."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any, Final

from tiny_llm_lab.bench.latency import ITL_COLUMNS, TTFT_COLUMNS, latencies
from tiny_llm_lab.bench.report import Column, Metrics, Ratio, Row, Section, measured_rows
from tiny_llm_lab.bench.run import Run
from tiny_llm_lab.bench.sample import serve
from tiny_llm_lab.bench.spec import Request
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
_SHORT, _LONGEST, _MOST_CHUNK = 32, 1536, 512
_LONG_SHARE: Final = 0.08  # of a run, that the prefill of a long prompt takes at most
_BURSTINESS: Final = 0.3
_LOAD: Final = 0.6  # of what the machine could compute
_FEWEST: Final = 12
_COLUMNS: Final = (
    Column("goodput", "goodput/s", ".2f"),
    Column("attainment", "inside", ".0%"),
    *ITL_COLUMNS,
    *TTFT_COLUMNS,
    Column("output_tokens_per_s", "out tok/s", ".1f"),
)


@dataclass(frozen=True)
class Load:
    """The requests of every run and their SLOs, and the costs of this machine that they are made from."""

    requests: tuple[Request, ...]
    itl_slo_s: float
    ttft_slo_s: float
    decode_s: float  # a decode step of the streams
    token_s: float  # a prompt token in a chunk
    samples: Sequence[Any] = ()  # timed steps, for the policy
    errors: list[Any] = field(default_factory=list)  # of the policy's predictions, one of each run

    @property
    def longest(self) -> int:
        return max(request.num_tokens for request in self.requests)


def slo(config: BenchConfig) -> Section:
    """Every budget once a round, on the same requests at the same times."""
    steps = {
        "decode": [decodes(config.streams, config.context)],
        "chunk": [chunk(config.context, config.chunk)],
    }
    seconds = {name: median(values) for name, values in config.time_steps(steps).items()}
    token_s = seconds["chunk"] / config.chunk
    load, long = bursts(config, seconds["decode"], token_s), long_prompt(config, token_s)
    grid = THOROUGH.steps(2 * long, min(_MOST_CHUNK, long))
    load = replace(load, samples=calibrate(config.model, config.llm, grid, limit_s=math.inf))
    names = [UNCHUNKED, *(f"budget {budget}" for budget in STATIC), POLICY]
    rows = measured_rows({name: partial(run, config, load, name) for name in names}, config.repeats)
    return section(rows, load)


def bursts(config: BenchConfig, decode_s: float, token_s: float) -> Load:
    """Short prompts with long answers, long prompts with short ones, in bursts that fill `load_s`."""
    long = long_prompt(config, token_s)
    kinds = (LengthKind(0.75, _SHORT, 0.3, 32, 0.3), LengthKind(0.25, long, 0.2, 8, 0.3))
    num_requests, rate = sized(kinds, decode_s / config.streams, token_s, config.load_s)
    drawn = draw_requests(num_requests, rate, _BURSTINESS, kinds, config.seed, config.limit)
    requests = tuple(
        Request("early", each.num_prompt_tokens, max(2, each.num_output_tokens), each.arrival_s)
        for each in drawn
    )
    return Load(requests, _ITL_STEPS * decode_s, _TTFT_PREFILLS * long * token_s, decode_s, token_s)


def long_prompt(config: BenchConfig, token_s: float) -> int:
    """Tokens of a long prompt: several fit into a run, whatever the machine."""
    return max(_SHORT * 4, min(_LONGEST, config.limit // 2, round(_LONG_SHARE * config.load_s / token_s)))


def sized(
    kinds: Sequence[LengthKind], output_token_s: float, token_s: float, load_s: float
) -> tuple[int, float]:
    """How many requests at which rate load the machine to `_LOAD` for about `load_s` seconds."""
    each_s = (kind.prompt_median * token_s + kind.output_median * output_token_s for kind in kinds)
    rate = _LOAD / sum(kind.share * work_s for kind, work_s in zip(kinds, each_s, strict=True))
    return max(_FEWEST, round(rate * load_s)), rate


def run(config: BenchConfig, load: Load, name: str) -> Metrics:
    """One run of one row of the table: whole prompts, a fixed budget, or the policy."""
    pacer = None
    if name == POLICY:
        # A model of its own for every run: corrections of one run are not passed to the next.
        model = config.llm.StepTimeModel(load.samples)
        pacer = config.llm.BudgetController(config.llm.LatencyPolicy(model, load.itl_slo_s))
    num_tokens = min(sum(request.num_tokens for request in load.requests), _MAX_SEQS * load.longest)
    found, _ = serve(
        lambda on_step: config.engine(
            scheduler_for(load, name), num_tokens, budget_controller=pacer, on_step=on_step
        ),
        load.requests,
        config.model.config.vocab_size,
        config.seed,
    )
    if pacer is not None:
        load.errors.append(pacer.policy.model.error())
    return goodput_metrics(found, load)


def scheduler_for(load: Load, name: str) -> SchedulerConfig:
    """The configuration of one row; the policy chooses its budgets below that of whole prompts."""
    fixed = int(name.split()[-1]) if name.startswith("budget") else 0
    return SchedulerConfig(
        max_num_batched_tokens=fixed or load.longest + _MAX_SEQS,
        max_num_seqs=min(_MAX_SEQS, fixed or _MAX_SEQS),  # every running request takes a token
        max_model_len=load.longest,
        enable_chunked_prefill=name != UNCHUNKED,
    )


def goodput_metrics(run: Run, load: Load) -> Metrics:
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


def section(rows: Sequence[Row], load: Load) -> Section:
    """The table of medians, and the policy's goodput against the best fixed budget and whole prompts."""
    unchunked, *statics, policy = rows
    meeting = [row for row in statics if row.median("itl_p99_s") <= load.itl_slo_s]
    notes = [
        f"{len(load.requests)} requests; "
        f"ITL SLO {load.itl_slo_s * 1e3:.1f} ms ({_ITL_STEPS:g} decode steps), "
        f"TTFT SLO {load.ttft_slo_s * 1e3:.0f} ms. Goodput: requests inside both, per second."
    ]
    if load.errors:
        p50, p90 = (median(getattr(error, name) for error in load.errors) for name in ("p50", "p90"))
        notes.append(f"Step-time prediction error of the policy: p50 {p50:.1%}, p90 {p90:.1%}.")
    others = [(UNCHUNKED, unchunked)]
    if meeting:
        best = max(meeting, key=lambda row: row.median("goodput"))
        others.insert(0, (f"{best.name}, the best fixed one inside the ITL SLO", best))
    else:
        notes.append("No fixed budget has its p99 ITL inside the SLO: nothing to compare the policy with.")
    ratios = [
        Ratio.of(f"{title}, policy / {name}", policy.samples[key], other.samples[key])
        for name, other in others
        for title, key in (("goodput", "goodput"), ("max ITL", "itl_max_s"))
    ]
    data = {name: getattr(load, name) for name in ("itl_slo_s", "ttft_slo_s", "decode_s", "token_s")} | {
        "requests": [asdict(request) for request in load.requests],
        "policy_errors": [[error.count, error.p50, error.p90] for error in load.errors],
    }
    return Section(
        "slo", f"slo: {len(load.requests)} requests in bursts", _COLUMNS, rows, ratios, notes, data
    )
