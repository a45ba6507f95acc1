"""All that a simulated run depends on. Each field is a flag of `simulate`."""

from argparse import ArgumentTypeError
from dataclasses import dataclass
from pathlib import Path

from tiny_llm_lab.measure.simulate.cost import StepCost, load_calibration, roofline
from tiny_llm_lab.measure.traffic.lengths import LENGTHS, draw_requests, parse_lengths
from tiny_llm_lab.measure.traffic.request import Request
from tiny_llm_lab.runtime.console.field_flags import above_zero, at_least, at_least_one, flag, zero_or_more
from tiny_llm_lab.runtime.metrics import Slo
from tiny_llm_lab.runtime.models.random.shapes import SHAPES, parse_shape
from tiny_llm_lab.types import Policy, SchedulerConfig, UserError

_KNOWN = [name for name, shape in SHAPES.items() if not shape.is_hybrid]
_SHAPES = f"model: {', '.join(_KNOWN)}, with options such as qwen3-8b,bits=4"


def _safety(text: str) -> float:
    if not (value := above_zero(text)) >= 1:
        raise ArgumentTypeError(f"must be 1 or more, not {text}")
    return value


@dataclass(frozen=True)
class Setting:
    """One run, in the units of its flags. The same setting gives the same outcome to the last digit."""

    requests: int = flag(1000, "number of requests", at_least_one)
    rate: float = flag(2.0, "requests per second", above_zero)
    burstiness: float = flag(1.0, "shape of the gamma intervals: 1 is Poisson, less is bursts", above_zero)
    seed: int = flag(0, "seed of arrivals, lengths and noise")
    threshold: int = flag(
        0, "most prompt tokens of a request in a step; 0 is off", alias="--long-prefill-token-threshold"
    )
    max_budget: int = flag(8192, "largest token budget with --max-num-batched-tokens slo")
    max_num_seqs: int = flag(64, "most requests that run at a time")
    max_model_len: int = flag(32768, "most tokens of a request; longer prompts are cut", at_least(2))
    kv_tokens: int = flag(320_000, "size of the KV cache in tokens")
    block_size: int = flag(16, "tokens in a KV cache block", at_least_one)
    itl_slo_ms: float = flag(50.0, "ITL SLO, in ms", above_zero)
    ttft_slo_ms: float = flag(2000.0, "TTFT SLO, in ms", above_zero)
    # What an A100 80 GB (datasheet: 2,039 GB/s, 312 TFLOP/s dense bf16) is assumed to reach.
    gb_s: float = flag(1500.0, "memory bandwidth of the machine, in GB/s", above_zero)
    tflop_s: float = flag(180.0, "arithmetic of the machine, in TFLOP/s", above_zero)
    overhead_ms: float = flag(1.0, "fixed time of a step, in ms", zero_or_more)
    noise: float = flag(0.0, "standard deviation of the logarithm of a step's time", zero_or_more)
    policy: Policy = flag("fcfs", "which requests are scheduled first")
    lengths: str = flag("sharegpt", f"tokens: {', '.join(LENGTHS)} or fixed:PROMPT:OUTPUT", metavar="KIND")
    budget: str = flag(
        "512",
        "token budget of a step, or slo to let the latency policy choose",
        alias="--max-num-batched-tokens",
    )
    shape: str = flag("qwen3-8b", _SHAPES, metavar="SHAPE")
    safety: float | None = flag(
        None, "factor on the step times that slo predicts (default: from their errors)", _safety
    )
    # In place of shape, gb_s, tflop_s and overhead_ms.
    calibration: Path | None = flag(
        None,
        "file with measured step times, from report or bench-engine --calibration-out (default: estimates)",
        metavar="FILE",
        alias="--machine",
    )

    def __post_init__(self) -> None:
        if self.kv_tokens < 2 * self.block_size:
            raise UserError("--kv-tokens must be at least twice --block-size")

    @property
    def fixed_budget(self) -> int | None:
        """Tokens of a step; None when the latency policy chooses them."""
        if self.budget == "slo":
            return None
        if not (self.budget.isascii() and self.budget.isdigit() and int(self.budget)):
            raise UserError(f"a budget must be a number of tokens or slo, not {self.budget!r}")
        return int(self.budget)

    @property
    def slo(self) -> Slo:
        """The SLOs in seconds."""
        return Slo(self.itl_slo_ms / 1e3, self.ttft_slo_ms / 1e3)

    @property
    def num_blocks(self) -> int:
        """Blocks of the cache."""
        return self.kv_tokens // self.block_size

    def scheduler(self) -> SchedulerConfig:
        """The limits of the scheduler."""
        return SchedulerConfig(
            max_num_batched_tokens=self.fixed_budget or self.max_budget,
            max_num_seqs=self.max_num_seqs,
            max_model_len=self.max_model_len,
            long_prefill_token_threshold=self.threshold,
            policy=self.policy,
        )

    def traffic(self) -> list[Request]:
        """The requests, in order of arrival."""
        return draw_requests(
            self.requests,
            self.rate,
            self.burstiness,
            parse_lengths(self.lengths),
            self.seed,
            max_len=min(self.max_model_len, self.num_blocks * self.block_size),
        )

    def step_cost(self) -> StepCost:
        """The time of a step: measured, or assumed."""
        if self.calibration is not None:
            return load_calibration(self.calibration)
        return roofline(parse_shape(self.shape), self.gb_s, self.tflop_s, self.overhead_ms / 1e3)
