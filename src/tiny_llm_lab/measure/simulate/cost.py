"""The time of a step, estimated from bandwidth and arithmetic or measured on another machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tiny_llm_lab.runtime.console.input_file import read_text
from tiny_llm_lab.runtime.models.random.shapes import Shape
from tiny_llm_lab.types import UserError

if TYPE_CHECKING:
    from tiny_llm_ref import StepTimeModel

_KV_BYTES = 2  # of one stored number: bfloat16


class StepCost(Protocol):
    """The true time of a step, as far as the simulation is concerned."""

    def seconds(self, num_tokens: int, attention_tokens: int, kv_tokens_read: int) -> float:
        """Seconds of a step; the counts are a `StepSample`'s."""
        ...


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


def roofline(shape: Shape, gb_per_s: float, tflop_per_s: float, overhead_s: float) -> Roofline:
    """The cost of a model of `shape` on a machine of this bandwidth and arithmetic.

    Bytes: every weight of the layers and of the head, at the shape's bits; keys and values in bfloat16.
    Operations: two per weight of the layers and token, 4 * layers * heads * head_dim per attended pair.
    The head's arithmetic and the embedding's bytes are small and left out. Raises UserError for a hybrid.
    """
    if shape.is_hybrid:
        raise UserError(f"{shape.name} is a hybrid, whose cost is not known yet: choose another --shape")
    attention = shape.hidden * shape.head_dim * 2 * (shape.heads + shape.kv_heads)
    in_layers = shape.layers * (attention + 3 * shape.hidden * shape.inner)
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
