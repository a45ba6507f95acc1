"""`slo`: bursts on the real engine: whole prompts, fixed budgets, and the budget that follows an ITL SLO."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Final

from tiny_llm_lab.bench.latency import ITL, TTFT, columns, latencies
from tiny_llm_lab.bench.report import Metrics, Ratio, Row, Section, ratios_of
from tiny_llm_lab.bench.run import Run
from tiny_llm_lab.bench.spec import Request, Schedule, Spec
from tiny_llm_lab.bench.sweep import Sweep
from tiny_llm_lab.simulate.traffic import LengthKind, draw_requests
from tiny_llm_lab.steps.shapes import chunk, decodes
from tiny_llm_lab.types import Timing

from .config import BenchConfig

STATIC: Final = (16, 32, 64, 128, 256, 512)
_MAX_SEQS: Final = 32
# The ITL SLO in decode steps, and the TTFT SLO in prefills of a whole long prompt.
_ITL_STEPS, _TTFT_PREFILLS = 5.0, 4.0
_SHORT, _LONGEST = 32, 1536
_LONG_SHARE: Final = 0.08  # of a run, that the prefill of a long prompt takes at most
_BURSTINESS: Final = 0.3
_LOAD: Final = 0.6  # of what the machine could compute
_FEWEST: Final = 12


@dataclass(frozen=True)
class Load:
    """The requests of every run and their SLOs, and the costs of this machine that they are made from."""

    requests: tuple[Request, ...]
    itl_slo_s: float
    ttft_slo_s: float
    decode_s: float  # a decode step of the streams
    token_s: float  # a prompt token in a chunk


def slo(config: BenchConfig) -> Section:
    """Every budget once a round, on the same requests at the same times."""
    steps = {
        "decode": [decodes(config.streams, config.context)],
        "chunk": [chunk(config.context, config.chunk)],
    }
    seconds = {name: median(values) for name, values in config.time_steps(steps).items()}
    load = bursts(config, seconds["decode"], seconds["chunk"] / config.chunk)
    sweep = Sweep(specs_of(config.spec, load))
    sweep.measure(config.repeats)
    return section(sweep.runs, load)


def bursts(config: BenchConfig, decode_s: float, token_s: float) -> Load:
    """Short prompts with long answers, long prompts with short ones, in bursts that fill `load_s`."""
    # Several long prompts fit into a run, whatever the machine.
    longest = min(_LONGEST, config.limit // 2)
    long = max(_SHORT * 4, min(longest, round(_LONG_SHARE * config.load_s / token_s)))
    kinds = (LengthKind(0.75, _SHORT, 0.3, 32, 0.3), LengthKind(0.25, long, 0.2, 8, 0.3))
    num_requests, rate = sized(kinds, decode_s / config.streams, token_s, config.load_s)
    drawn = draw_requests(num_requests, rate, _BURSTINESS, kinds, config.seed, config.limit)
    requests = tuple(
        Request("early", each.num_prompt_tokens, max(2, each.num_output_tokens), each.arrival_s)
        for each in drawn
    )
    return Load(requests, _ITL_STEPS * decode_s, _TTFT_PREFILLS * long * token_s, decode_s, token_s)


def sized(
    kinds: Sequence[LengthKind], output_token_s: float, token_s: float, load_s: float
) -> tuple[int, float]:
    """How many requests at which rate load the machine to `_LOAD` for about `load_s` seconds."""
    each_s = (kind.prompt_median * token_s + kind.output_median * output_token_s for kind in kinds)
    rate = _LOAD / sum(kind.share * work_s for kind, work_s in zip(kinds, each_s, strict=True))
    return max(_FEWEST, round(rate * load_s)), rate


def specs_of(spec: Spec, load: Load) -> list[Spec]:
    """Whole prompts, every fixed budget, and the policy, whose budgets are below that of whole prompts."""
    most = max(request.num_tokens for request in load.requests) + _MAX_SEQS
    schedules = [
        Schedule(budget=most, is_chunked=False),
        *(Schedule(budget=budget) for budget in STATIC),
        Schedule(budget=most, itl_slo_s=load.itl_slo_s),
    ]
    return [
        replace(
            spec,
            schedule=schedule,
            requests=load.requests,
            batch_size=min(_MAX_SEQS, schedule.budget),  # every running request takes a token
            variant=schedule.name,
        )
        for schedule in schedules
    ]


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


def section(runs: Mapping[Spec, Sequence[Run]], load: Load) -> Section:
    """The table of medians, and the policy's goodput against the best fixed budget and whole prompts."""
    rows = [
        Row.of_runs(spec.variant, (goodput_metrics(run, load) for run in own)) for spec, own in runs.items()
    ]
    errors = [run.prediction_error for own in runs.values() for run in own if run.prediction_error]
    title = f"slo: {len(load.requests)} requests in bursts"
    notes = [
        f"ITL SLO {load.itl_slo_s * 1e3:.1f} ms ({_ITL_STEPS:g} decode steps), "
        f"TTFT SLO {load.ttft_slo_s * 1e3:.0f} ms. Goodput: requests inside both, per second."
    ]
    if errors:
        p50, p90 = (median(getattr(error, name) for error in errors) for name in ("p50", "p90"))
        notes.append(f"Step-time prediction error of the policy: p50 {p50:.1%}, p90 {p90:.1%}.")
    ratios, note = compared(rows, load.itl_slo_s)
    shown = columns(("goodput", "attainment", *ITL, *TTFT, "output_tokens_per_s"))
    data = asdict(load) | {"policy_errors": [[error.count, error.p50, error.p90] for error in errors]}
    return Section("slo", title, shown, rows, ratios, [*notes, note], data)


def compared(rows: Sequence[Row], itl_slo_s: float) -> tuple[list[Ratio | None], str]:
    """The policy, the last row, against the best fixed budget inside the SLO and the first; and a note."""
    whole, *statics, policy = rows
    shown = columns(("goodput", "itl_max_s"))
    ratios = ratios_of(policy, whole, shown)
    meeting = [row for row in statics if row.median("itl_p99_s") <= itl_slo_s]
    if not meeting:
        return ratios, "No fixed budget has its p99 ITL inside the SLO: nothing to compare the policy with."
    best = max(meeting, key=lambda row: row.median("goodput"))
    note = f"Of the fixed budgets inside the ITL SLO, {best.name} has the best goodput."
    return ratios_of(policy, best, shown) + ratios, note
