"""Measured steps of an engine, and what the time of a step depends on."""

from dataclasses import dataclass

# Seconds per step, per token, per attention token and per token read from the KV cache.
StepCoefficients = tuple[float, float, float, float]


@dataclass(frozen=True)
class StepSample:
    """One measured step."""

    num_tokens: int
    attention_tokens: int  # the sum of `attention_tokens` over the step's requests
    kv_tokens_read: int  # stored tokens of these requests, each read once, whatever attends to it
    seconds: float


@dataclass(frozen=True)
class StepTimeError:
    """Relative errors |predicted - measured| / measured: their number and nearest-rank percentiles."""

    count: int
    p50: float
    p90: float


def attention_tokens(num_computed: int, num_new: int) -> int:
    """Returns how many tokens `num_new` tokens after `num_computed` attend to, summed over the new tokens.

    A token attends to all tokens before it and to itself: (10, 1) -> 11, (10, 3) -> 11 + 12 + 13 = 36.
    """
    return num_new * num_computed + num_new * (num_new + 1) // 2
