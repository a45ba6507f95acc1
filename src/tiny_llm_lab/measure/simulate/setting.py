"""All that a simulated run depends on. Each field is a flag of `simulate`."""

import math
import operator
from argparse import ArgumentParser
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Final, Literal, get_args, get_origin, get_type_hints

from tiny_llm_lab.measure.simulate.cost import StepCost, load_calibration, roofline
from tiny_llm_lab.measure.simulate.traffic import LENGTHS, SimRequest, draw_requests, parse_lengths
from tiny_llm_lab.runtime.metrics import Slo
from tiny_llm_lab.runtime.models.random.shapes import SHAPES, parse_shape
from tiny_llm_lab.types import Policy, SchedulerConfig, UserError

Route = Literal["round-robin", "least-loaded"]
_COMPARISONS: Final = {">": operator.gt, ">=": operator.ge, "<": operator.lt}


@dataclass(frozen=True)
class Flag:
    """The help of a field, its bounds as in "> 0, < 1", and a longer name of its flag."""

    what: str
    bounds: str = ""
    longer: str = ""


@dataclass(frozen=True)
class Setting:
    """One run, in the units of its flags. The same setting gives the same outcome to the last digit."""

    requests: Annotated[int, Flag("number of requests", ">= 1")] = 1000
    rate: Annotated[float, Flag("requests per second, all replicas together", "> 0")] = 2.0
    burstiness: Annotated[float, Flag("shape of the gamma intervals: 1 = Poisson, less = bursts", "> 0")] = (
        1.0
    )
    batch_share: Annotated[
        float, Flag("share of the requests, and of --rate, that is batch class", ">= 0, < 1")
    ] = 0.0
    seed: Annotated[int, Flag("seed of arrivals, lengths and noise")] = 0
    replicas: Annotated[int, Flag("engines that share the requests", ">= 1")] = 1
    threshold: Annotated[
        int,
        Flag("most prompt tokens of a request in a step; 0 = off", longer="--long-prefill-token-threshold"),
    ] = 0
    max_budget: Annotated[int, Flag("largest token budget with --max-num-batched-tokens slo")] = 8192
    max_num_seqs: Annotated[int, Flag("most requests that run at a time, per replica")] = 64
    max_model_len: Annotated[int, Flag("most tokens of a request; longer prompts are cut", ">= 2")] = 32768
    kv_tokens: Annotated[int, Flag("tokens that the KV cache of a replica holds")] = 320_000
    block_size: Annotated[int, Flag("tokens of a KV cache block", ">= 1")] = 16
    itl_slo_ms: Annotated[float, Flag("SLO of the gap between two tokens", "> 0")] = 50.0
    ttft_slo_ms: Annotated[float, Flag("SLO of the time to the first token", "> 0")] = 2000.0
    # What an A100 80 GB (datasheet: 2,039 GB/s, 312 TFLOP/s dense bf16) is assumed to reach.
    gb_s: Annotated[float, Flag("memory bandwidth of the machine, in GB/s", "> 0")] = 1500.0
    tflop_s: Annotated[float, Flag("arithmetic of the machine, in TFLOP/s", "> 0")] = 180.0
    overhead_ms: Annotated[float, Flag("fixed time of a step", ">= 0")] = 1.0
    noise: Annotated[float, Flag("standard deviation of the logarithm of a step's time", ">= 0")] = 0.0
    policy: Annotated[Policy, Flag("order of requests")] = "fcfs"
    route: Annotated[Route, Flag("which replica gets the next request")] = "round-robin"
    lengths: Annotated[str, Flag(f"{', '.join(LENGTHS)} or fixed:PROMPT:OUTPUT")] = "sharegpt"
    budget: Annotated[
        str, Flag("tokens of a step, or slo: the latency policy chooses", longer="--max-num-batched-tokens")
    ] = "512"
    shape: Annotated[
        str, Flag(f"the model: {', '.join(SHAPES)}, also with options as in qwen3-8b,bits=4")
    ] = "qwen3-8b"
    safety: float | None = None  # factor on predicted step times; None: from the prediction errors
    calibration: Path | None = None  # measured step times, in place of shape, gb_s, tflop_s and overhead_ms

    def __post_init__(self) -> None:
        for name, _, flag in _flags():
            value = getattr(self, name)
            if isinstance(value, float) and not math.isfinite(value):
                raise UserError(f"{_option(name)} must be a finite number, not {value}")
            for bound in filter(None, flag.bounds.split(", ")):
                comparison, limit = bound.split()
                if not _COMPARISONS[comparison](value, float(limit)):
                    raise UserError(f"{_option(name)} must be {flag.bounds}, not {value}")
        if self.safety is not None and not self.safety >= 1:
            raise UserError("--safety must be 1 or more")
        if self.kv_tokens < 2 * self.block_size:
            raise UserError("--kv-tokens must be at least twice --block-size")

    @property
    def fixed_budget(self) -> int | None:
        """Tokens of a step; None when the latency policy chooses them."""
        if self.budget == "slo":
            return None
        if not (self.budget.isascii() and self.budget.isdigit() and int(self.budget)):
            raise UserError(f"a budget is a number of tokens or slo, not {self.budget!r}")
        return int(self.budget)

    @property
    def slo(self) -> Slo:
        """The SLOs in seconds."""
        return Slo(self.itl_slo_ms / 1e3, self.ttft_slo_ms / 1e3)

    @property
    def num_blocks(self) -> int:
        """Blocks of a replica."""
        return self.kv_tokens // self.block_size

    def scheduler(self) -> SchedulerConfig:
        """The limits of a replica's scheduler."""
        return SchedulerConfig(
            max_num_batched_tokens=self.fixed_budget or self.max_budget,
            max_num_seqs=self.max_num_seqs,
            max_model_len=self.max_model_len,
            long_prefill_token_threshold=self.threshold,
            policy=self.policy,
        )

    def traffic(self) -> list[SimRequest]:
        """The requests, in order of arrival."""
        return draw_requests(
            self.requests,
            self.rate,
            self.burstiness,
            parse_lengths(self.lengths),
            self.seed,
            max_len=min(self.max_model_len, self.num_blocks * self.block_size),
            batch_share=self.batch_share,
        )

    def step_cost(self) -> StepCost:
        """The time of a step: measured, or assumed."""
        if self.calibration is not None:
            return load_calibration(self.calibration)
        return roofline(parse_shape(self.shape), self.gb_s, self.tflop_s, self.overhead_ms / 1e3)


def add_setting_flags(parser: ArgumentParser) -> None:
    """The flags of a `Setting`, under the names of its fields."""
    add = parser.add_argument
    for name, kind, flag in _flags():
        choices = get_args(kind) or None  # of a Literal
        add(
            *filter(None, (flag.longer, _option(name))),
            dest=name,
            type=str if choices else kind,
            default=getattr(Setting, name),
            choices=choices,
            help=f"{flag.what}{f'; {flag.bounds}' if flag.bounds else ''} (default: %(default)s)",
        )
    add("--safety", type=float, help="factor on step times predicted for slo (default: from their errors)")
    add("--calibration", type=Path, help="measured step times: a file of bench-engine --calibration-out")


@cache
def _flags() -> list[tuple[str, type, Flag]]:
    """(field, type, Flag) of every field that has a Flag."""
    hints = get_type_hints(Setting, include_extras=True).items()
    return [(name, *get_args(hint)) for name, hint in hints if get_origin(hint) is Annotated]


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
