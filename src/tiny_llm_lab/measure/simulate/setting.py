"""What a simulated run depends on, and what its steps cost. A field of `Setting` is a flag of `simulate`."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tiny_llm_lab.measure.traffic.request import LENGTHS, Request, draw_requests, parse_lengths
from tiny_llm_lab.runtime.console.field_flags import above_zero, at_least, at_least_one, flag, zero_or_more
from tiny_llm_lab.runtime.console.input_file import read_text
from tiny_llm_lab.runtime.metrics import Slo
from tiny_llm_lab.runtime.models.random.shapes import SHAPES, Shape, parse_shape
from tiny_llm_lab.types import Policy, SchedulerConfig, UserError

if TYPE_CHECKING:
    from tiny_llm_ref import StepTimeModel


_KV_BYTES = 2  # of one stored number: bfloat16


@dataclass(frozen=True)
class Roofline:
    """The least time that bytes and operations take, plus a fixed overhead. An estimate, not a measurement.

    Linear layers take the longer of reading all weights once and computing with them for every token;
    attention takes the longer of the same two for keys and values. Attention comes after the linear layers.
    """

    overhead_s: float
    weight_s: float  # to read all weights once
    token_s: float  # arithmetic of one token in the linear layers
    attended_s: float  # arithmetic of one token attending to one stored token
    stored_s: float  # to read one token's keys and values

    def seconds(self, num_tokens: int, attention_tokens: int, kv_tokens_read: int) -> float:
        """Seconds of a step; the counts are a `StepSample`'s."""
        linear_s = max(self.weight_s, self.token_s * num_tokens)
        attention_s = max(self.attended_s * attention_tokens, self.stored_s * kv_tokens_read)
        return self.overhead_s + linear_s + attention_s


@dataclass(frozen=True)
class Calibrated:
    """Measured: (a, b, c, d) of a + b * tokens + c * attended + d * stored, for small and large steps."""

    split_tokens: int  # the most tokens of a small step
    small: tuple[float, float, float, float]
    large: tuple[float, float, float, float]

    def seconds(self, num_tokens: int, attention_tokens: int, kv_tokens_read: int) -> float:
        a, b, c, d = self.small if num_tokens <= self.split_tokens else self.large
        return a + b * num_tokens + c * attention_tokens + d * kv_tokens_read


StepCost = Roofline | Calibrated  # how long a step takes


def roofline(shape: Shape, gb_per_s: float, tflop_per_s: float, overhead_s: float) -> Roofline:
    """The cost of a model of `shape` on a machine of this bandwidth and arithmetic.

    Bytes: every weight of the layers and of the head, at the shape's bits; keys and values in bfloat16.
    Operations: two per weight of the layers and token, 4 * layers * heads * head_dim per attended pair.
    The head's arithmetic and the embedding's bytes are small and left out. Raises UserError for a hybrid.
    """
    if shape.is_hybrid:
        raise UserError(f"{shape.name} is a hybrid, whose cost is not known yet: choose another --shape")
    attention = shape.hidden * shape.head_dim * 2 * (shape.heads + shape.kv_heads)
    in_layers = shape.layers * (attention + 3 * shape.hidden * (shape.inner + shape.shared_inner))
    num_bytes = (in_layers + shape.vocab * shape.hidden) * shape.bits / 8
    stored_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * _KV_BYTES
    return Roofline(
        overhead_s=overhead_s,
        weight_s=num_bytes / (gb_per_s * 1e9),
        token_s=2 * in_layers / (tflop_per_s * 1e12),
        attended_s=4 * shape.layers * shape.heads * shape.head_dim / (tflop_per_s * 1e12),
        stored_s=stored_bytes / (gb_per_s * 1e9),
    )


def calibration_json(step_time: StepTimeModel) -> dict[str, object]:
    """A fitted step-time model as `load_calibration` reads it, in seconds; corrections left out."""
    return {
        "split_tokens": step_time.split_tokens,
        "small": list(step_time.small),
        "large": list(step_time.large),
    }


def load_calibration(path: Path) -> Calibrated:
    """Read {"split_tokens": N, "small": [a, b, c, d], "large": [a, b, c, d]}, seconds per unit."""
    text = read_text(str(path), "give a calibration file")
    try:
        value = json.loads(text)
        (a, b, c, d), (e, f, g, h) = (map(float, value[key]) for key in ("small", "large"))
        if min(a, b, c, d, e, f, g, h) >= 0:
            return Calibrated(int(value["split_tokens"]), (a, b, c, d), (e, f, g, h))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        pass
    raise UserError(f'{path}: write {{"split_tokens": N, "small": [a, b, c, d], "large": [a, b, c, d]}}')


_KNOWN = [name for name, shape in SHAPES.items() if not shape.is_hybrid]
_SHAPES = f"model: {', '.join(_KNOWN)}, with options such as qwen3-8b,bits=4"


MEASURED = "file with measured step times, from report or bench-engine --calibration-out (default: {})"


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
    calibration: Path | None = flag(None, MEASURED.format("estimates"), metavar="FILE", alias="--machine")

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
