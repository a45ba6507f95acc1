"""How a checkpoint scales its rotary positions to serve longer texts than it was first trained on."""

import math
from dataclasses import dataclass
from typing import Literal

import mlx.core as mx


@dataclass(frozen=True)
class RopeScaling:
    """`rope_scaling` of a `config.json`.

    "linear" divides all frequencies by `factor`. "yarn" (Peng et al. 2023, arXiv 2309.00071, section 3.2)
    divides only the slow frequencies, which turn less than `beta_slow` times in the original length of
    `original_max_position_embeddings` tokens. Frequencies of more than `beta_fast` turns stay the same, and
    the frequencies between are blended. Cosines and sines are multiplied by `magnitude`. "llama3" (Llama 3.1)
    has the same limits, and blends by the number of turns instead of the number of the pair.
    """

    kind: Literal["linear", "yarn", "llama3"]
    factor: float
    original_max_position_embeddings: int
    magnitude: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True  # whether to round the limits of the blend outwards to whole pairs

    def scaled(self, frequencies: mx.array, base: float) -> mx.array:
        """Returns what to use instead of base^(-2i / dims), both [dims / 2] in radians a position."""
        slow = frequencies / self.factor
        if self.kind == "linear":
            return slow
        if self.kind == "llama3":
            turns = frequencies * (self.original_max_position_embeddings / (2 * math.pi))
            kept = mx.clip((turns - self.beta_slow) / (self.beta_fast - self.beta_slow), 0, 1)
            return frequencies * kept + slow * (1 - kept)
        num_pairs = frequencies.size
        first, last = self._pair(self.beta_fast, num_pairs, base), self._pair(self.beta_slow, num_pairs, base)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * num_pairs - 1)
        # Both limits may be the same pair. Then the blend is a step function.
        ramp = (mx.arange(num_pairs, dtype=mx.float32) - first) / (last - first or 0.001)
        blend = mx.clip(ramp, 0, 1)
        return frequencies * (1 - blend) + slow * blend

    def _pair(self, turns: float, num_pairs: int, base: float) -> float:
        """Returns the pair of dimensions, as a fraction, that turns `turns` times in the original length."""
        length = self.original_max_position_embeddings / (2 * math.pi * turns)
        return num_pairs * math.log(length) / math.log(base)


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """Returns 0.1 * weight * ln(factor) + 1 (equation 22 of the paper with weight 1)."""
    return 0.1 * weight * math.log(factor) + 1.0
