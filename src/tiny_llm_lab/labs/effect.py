"""What a change of settings did to a metric: higher, lower, or nothing that the spread does not explain."""

from dataclasses import dataclass
from typing import Final, Literal

from tiny_llm_lab.bench.report import Ratio, Row

Kind = Literal["higher", "lower", "none", "unclear"]
LEAST: Final = 0.05  # medians closer than this are called equal, however small the spread
MOST: Final = 0.15  # and rounds that are further from 1 than this allow no such word


@dataclass(frozen=True)
class Effect:
    """How a variant's metric compares with a baseline's, by the ratios of all rounds."""

    name: str  # of the metric
    kind: Kind
    ratio: Ratio | None  # variant / baseline; None where a round has no value

    @property
    def factor(self) -> float | None:
        """By how much, as a number of 1 or more."""
        if self.ratio is None or not self.ratio.value:
            return None
        return max(self.ratio.value, 1 / self.ratio.value)

    def is_(self, kind: Kind) -> bool | None:
        """Whether the effect is `kind`; None where the rounds do not tell."""
        return None if self.kind == "unclear" else self.kind == kind

    def __str__(self) -> str:
        if self.ratio is None:
            return f"{self.name} could not be compared"
        low, high = self.ratio.low, self.ratio.high
        spread = f" (variant / baseline {low:.2f} to {high:.2f})" if low != high else " (one round)"
        if self.kind == "unclear":
            return f"{self.name} varies too much to tell{spread}"
        if self.kind == "none":
            return f"{self.name} did not change{spread}"
        return f"{self.name} is {self.factor:.2f} times {self.kind}{spread}"


def effect_of(name: str, variant: Row, baseline: Row, key: str) -> Effect:
    """An effect needs all rounds on one side of 1, and medians that are `LEAST` apart.

    No effect needs all rounds within `MOST` of 1; else it is unclear.
    """
    ratio = Ratio.of(name, variant.samples[key], baseline.samples[key])
    if ratio is None:
        return Effect(name, "unclear", None)
    kind: Kind = "none" if ratio.low >= 1 - MOST and ratio.high <= 1 + MOST else "unclear"
    if ratio.low > 1 and ratio.value >= 1 + LEAST:
        kind = "higher"
    elif ratio.high < 1 and ratio.value <= 1 - LEAST:
        kind = "lower"
    return Effect(name, kind, ratio)
