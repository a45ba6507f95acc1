"""`slo`: bursts on the real engine, whole prompts, fixed budgets, and the budget that follows an ITL SLO."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any, Final

from tiny_llm_lab.calibration import THOROUGH, calibrate
from tiny_llm_lab.simulate.traffic import LengthKind, draw_requests
from tiny_llm_lab.step_runner import StepRunner
from tiny_llm_lab.step_shapes import chunk, decodes
from tiny_llm_lab.types import Prompt, SchedulerConfig

from .load import Latencies, latencies, serve
from .report import Report
from .setting import Setting, answering
from .turns import Ratio, Side, take_turns

STATIC: Final = (16, 32, 64, 128, 256, 512)
UNCHUNKED, POLICY = "whole prompts", "SLO policy"
_SEATS: Final = 32
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


@dataclass(frozen=True)
class Machine:
    """Measured: a decode step of the streams, a prompt token in a chunk; the fit of a step's seconds."""

    decode_s: float
    token_s: float
    samples: Sequence[Any]


@dataclass(frozen=True)
class Load:
    """The requests of every run, and what their users expect."""

    prompts: Sequence[Prompt]
    itl_slo_s: float
    ttft_slo_s: float


def slo(setting: Setting) -> Report:
    """Every budget once a turn, on the same requests at the same times."""
    machine = measured_machine(setting)
    load = bursts(setting, machine)
    names = [UNCHUNKED, *(f"budget {budget}" for budget in STATIC), POLICY]
    runs: dict[str, list[Latencies]] = {name: [] for name in names}
    errors: list[Any] = []
    for repeat in range(setting.repeats):
        for name in names if repeat % 2 == 0 else reversed(names):
            engine = engine_for(setting, machine, load, name)
            try:
                runs[name].append(latencies(serve(engine, load.prompts), load.itl_slo_s, load.ttft_slo_s))
                if engine.pacer is not None:
                    errors.append(engine.pacer.policy.model.error())
            finally:
                engine.release()
    return slo_report(runs, load, machine, errors)


def measured_machine(setting: Setting) -> Machine:
    """Own decode and chunk steps in turns, and a calibration for the policy."""
    riders, piece = decodes(setting.streams, setting.context), chunk(setting.context, setting.chunk)
    runner = StepRunner(setting.llm, setting.model, [riders, piece], setting.seed)
    sides = [Side("decode", partial(runner.run, riders)), Side("chunk", partial(runner.run, piece))]
    seconds = take_turns(sides, setting.rounds)
    runner.release()
    token_s = median(seconds["chunk"]) / setting.chunk
    long = long_prompt(setting, token_s)
    steps = THOROUGH.steps(2 * long, min(_MOST_CHUNK, long))
    samples = calibrate(setting.model, setting.llm, steps, limit_s=math.inf)
    return Machine(median(seconds["decode"]), token_s, samples)


def long_prompt(setting: Setting, token_s: float) -> int:
    """Tokens of a long prompt: several fit into a run, whatever the machine."""
    return max(_SHORT * 4, min(_LONGEST, setting.limit // 2, round(_LONG_SHARE * setting.load_s / token_s)))


def bursts(setting: Setting, machine: Machine) -> Load:
    """Short prompts with long answers, long prompts with short ones, in bursts that fill `load_s`."""
    long = long_prompt(setting, machine.token_s)
    kinds = (
        LengthKind(_SHARES[0], _SHORT, 0.3, _SHORT_ANSWER, 0.3),
        LengthKind(_SHARES[1], long, 0.2, _LONG_ANSWER, 0.3),
    )
    num_requests, rate = sized(kinds, machine, setting.streams, setting.load_s)
    drawn = draw_requests(num_requests, rate, _BURSTINESS, kinds, setting.seed, setting.limit)
    tokens = setting.prompts(1, sum(each.num_prompt_tokens for each in drawn), seed=1)[0]
    prompts, first = [], 0
    for each in drawn:
        content = tokens[first : first + each.num_prompt_tokens]
        first += each.num_prompt_tokens
        prompts.append(Prompt(content, answering(max(2, each.num_output_tokens)), each.arrival_s))
    return Load(prompts, _ITL_STEPS * machine.decode_s, _TTFT_PREFILLS * long * machine.token_s)


def sized(kinds: Sequence[LengthKind], machine: Machine, streams: int, load_s: float) -> tuple[int, float]:
    """How many requests at which rate load the machine to `_LOAD` for about `load_s` seconds."""
    work_s = sum(
        kind.share * (kind.prompt_median * machine.token_s + kind.output_median * machine.decode_s / streams)
        for kind in kinds
    )
    rate = _LOAD / work_s
    return max(_FEWEST, round(rate * load_s)), rate


def slo_report(
    runs: Mapping[str, Sequence[Latencies]], load: Load, machine: Machine, errors: Sequence[Any] = ()
) -> Report:
    """The table of medians, and the policy's goodput against the best fixed budget and whole prompts."""
    statics = [name for name in runs if name not in (UNCHUNKED, POLICY)]
    meeting = [name for name in statics if _median(runs[name], "itl_p99_s") <= load.itl_slo_s]
    notes = [
        f"{len(load.prompts)} requests; ITL SLO {load.itl_slo_s * 1e3:.1f} ms ({_ITL_STEPS:g} decode steps), "
        f"TTFT SLO {load.ttft_slo_s * 1e3:.0f} ms. Goodput: requests inside both, per second."
    ]
    if errors:
        p50, p90 = (median(getattr(error, name) for error in errors) for name in ("p50", "p90"))
        notes.append(f"The policy foretold its own steps with errors of p50 {p50:.1%} and p90 {p90:.1%}.")
    ratios = []
    if meeting:
        best = max(meeting, key=lambda name: _median(runs[name], "goodput"))
        ratios += _ratios(f"policy / {best}, the best fixed one inside the ITL SLO", runs, best)
    else:
        notes.append("No fixed budget has its p99 ITL inside the SLO: nothing to compare the policy with.")
    ratios += _ratios(f"policy / {UNCHUNKED}", runs, UNCHUNKED)
    return Report(
        "slo",
        f"{len(load.prompts)} requests in bursts",
        ("budget", "goodput/s", "inside", "ITL p50 ms", "p99", "max", "TTFT p50 ms", "p99", "out tok/s"),
        [_row(name, values) for name, values in runs.items()],
        ratios,
        notes,
        {
            "itl_slo_s": load.itl_slo_s,
            "ttft_slo_s": load.ttft_slo_s,
            "decode_s": machine.decode_s,
            "token_s": machine.token_s,
            "requests": [
                [prompt.arrival_s, len(prompt.content), prompt.sampling.max_tokens] for prompt in load.prompts
            ],
            "policy_errors": [[error.count, error.p50, error.p90] for error in errors],
            "runs": {name: [asdict(each) for each in values] for name, values in runs.items()},
        },
    )


def _ratios(name: str, runs: Mapping[str, Sequence[Latencies]], other: str) -> list[Ratio]:
    """Of goodput and of the longest gap; none where the other one has nothing to divide by."""
    ratios = []
    for title, field in (("goodput", "goodput"), ("max ITL", "itl_max_s")):
        pairs = [
            (getattr(a, field), getattr(b, field)) for a, b in zip(runs[POLICY], runs[other], strict=True)
        ]
        if all(under > 0 for _, under in pairs):
            each = [over / under for over, under in pairs]
            value = median(over for over, _ in pairs) / median(under for _, under in pairs)
            ratios.append(Ratio(f"{title}, {name}", value, min(each), max(each)))
    return ratios


def _row(name: str, values: Sequence[Latencies]) -> tuple[str, ...]:
    in_ms = ("itl_p50_s", "itl_p99_s", "itl_max_s", "ttft_p50_s", "ttft_p99_s")
    return (
        name,
        f"{_median(values, 'goodput'):.2f}",
        f"{_median(values, 'attainment'):.0%}",
        *(f"{_median(values, field) * 1e3:.1f}" for field in in_ms),
        f"{_median(values, 'output_tokens_per_s'):.1f}",
    )


def _median(values: Sequence[Latencies], field: str) -> float:
    return float(median(getattr(each, field) for each in values))


def engine_for(setting: Setting, machine: Machine, load: Load, name: str) -> Any:
    """The engine of one row of the table: whole prompts, a fixed budget, or the policy."""
    llm = setting.llm
    longest = max(len(each.content) + (each.sampling.max_tokens or 0) for each in load.prompts)
    whole = longest + _SEATS
    fixed = None if name in (UNCHUNKED, POLICY) else int(name.split()[-1])
    config = SchedulerConfig(
        max_num_batched_tokens=fixed or whole,
        max_num_seqs=min(_SEATS, fixed or _SEATS),  # a scheduler wants a token for everyone who runs
        max_model_len=longest,
        enable_chunked_prefill=name != UNCHUNKED,
    )
    pacer = None
    if name == POLICY:
        # A model of its own for every run: what one run has learnt is not given to the next.
        policy = llm.LatencyPolicy(llm.StepTimeModel(machine.samples), load.itl_slo_s)
        pacer = llm.BudgetController(policy)
    num_tokens = sum(len(each.content) + (each.sampling.max_tokens or 0) for each in load.prompts)
    return setting.engine(config, min(num_tokens, _SEATS * longest), pacer=pacer)
